#pragma once

#include <array>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "config/keys/key_table.h"

// The words in which the rows of the key table are written. A row whose name has no / is a key of
// the block above it.
namespace zerorun::keys {

// The values of a key: integer.from(0, 3), string.one_of("mean|sum"), number | numbers.
struct Values {
  unsigned type;
  KeyRange range = {};
  std::string_view choices = {};

  static constexpr double kNoLimit = std::numeric_limits<double>::infinity();
  constexpr Values from(double low, double high = kNoLimit) const {
    return {type, {.low = low, .high = high}, choices};
  }
  constexpr Values above(double low, double high = kNoLimit) const {
    return {type, {.low = low, .high = high, .above_low = true}, choices};
  }
  constexpr Values one_of(std::string_view strings) const { return {type, range, strings}; }
  constexpr Values operator|(const Values& other) const { return {type | other.type}; }
};

inline constexpr Values boolean{KeyType::boolean};
inline constexpr Values integer{KeyType::integer};
inline constexpr Values number{KeyType::number};
inline constexpr Values string{KeyType::string};
inline constexpr Values strings{KeyType::strings};
inline constexpr Values integers{KeyType::integers};
inline constexpr Values betas{KeyType::betas};
inline constexpr Values numbers{KeyType::numbers};
inline constexpr Values infinity{KeyType::infinity};
inline constexpr Values object{KeyType::block};
inline constexpr Values free_form{KeyType::free_form};
inline constexpr double kMaxFloat = std::numeric_limits<float>::max();  // of what is kept in fp32

// follow<&Config::zero, &ZeroConfig::stage>(config) is config.zero.stage.
template <auto First, auto... Rest, typename Object>
constexpr auto& follow(Object& whole) {
  if constexpr (sizeof...(Rest) == 0) {
    return whole.*First;
  } else {
    return follow<Rest...>(whole.*First);
  }
}

// The binding to a member of Config or of one of its parts.
template <auto... Members>
inline constexpr KeyBinding bind = {
    .set = [](Config& config,
              const JsonNode& value) { read_value(value, follow<Members...>(config)); },
    .get = [](const Config& config) { return write_value(follow<Members...>(config)); },
};
// The same for a value that is 0 or "" while it is not given.
template <auto... Members>
inline constexpr KeyBinding bind_if_given = {
    .set = bind<Members...>.set,
    .get = [](const Config& config) -> std::string {
      const auto& value = follow<Members...>(config);
      return value == std::decay_t<decltype(value)>() ? "null" : write_value(value);
    },
};
// The same for a number for which 0 means the default.
template <auto... Members>
inline constexpr KeyBinding bind_unless_zero = {
    .set =
        [](Config& config, const JsonNode& value) {
          if (value.number != 0) read_value(value, follow<Members...>(config));
        },
    .get = bind<Members...>.get,
};
template <auto Member>
inline constexpr KeyBinding precision = bind<&Config::precision, Member>;
template <auto Member>
inline constexpr KeyBinding zero = bind<&Config::zero, Member>;

// A key that works. In the functions below `status` and `note` are those of KeySpec.
constexpr KeySpec key(std::string_view pointer, Values values, std::string_view fallback,
                      std::string_view doc, KeyBinding binding = {},
                      const KeyDetails& details = {}) {
  KeySpec spec{details};
  spec.pointer = pointer;
  spec.type = values.type;
  spec.fallback = fallback;
  spec.range = values.range;
  spec.choices = values.choices;
  spec.doc = doc;
  spec.binding = binding;
  return spec;
}
constexpr KeySpec with_status(KeyStatus status, std::string_view note, KeySpec spec) {
  spec.status = status;
  spec.note = note;
  return spec;
}
constexpr KeySpec block(std::string_view pointer, std::string_view doc,
                        std::string_view gate_of_keys = {}, KeyDetails details = {}) {
  details.gate_of_keys = gate_of_keys;
  return key(pointer, object, "null", doc, {}, details);
}
constexpr KeySpec always_on(std::string_view pointer, std::string_view fallback,
                            std::string_view doc, const KeyDetails& details = {}) {
  return with_status(KeyStatus::always_on, {}, key(pointer, boolean, fallback, doc, {}, details));
}
constexpr KeySpec no_effect(std::string_view pointer, Values values, std::string_view fallback,
                            std::string_view doc, std::string_view note,
                            const KeyDetails& details = {}, KeyBinding binding = {}) {
  return with_status(KeyStatus::no_effect, note,
                     key(pointer, values, fallback, doc, binding, details));
}
constexpr KeySpec deprecated(std::string_view pointer, Values values, std::string_view fallback,
                             std::string_view doc, std::string_view replacement) {
  return with_status(KeyStatus::deprecated, replacement, key(pointer, values, fallback, doc));
}
constexpr KeySpec not_yet(std::string_view pointer, Values values, std::string_view fallback,
                          std::string_view doc, std::string_view note = {},
                          const KeyDetails& details = {}) {
  return with_status(KeyStatus::not_yet, note, key(pointer, values, fallback, doc, {}, details));
}
constexpr KeySpec removed(std::string_view pointer, Values values, std::string_view fallback,
                          std::string_view doc, std::string_view note = {}) {
  return with_status(KeyStatus::removed, note, key(pointer, values, fallback, doc));
}
// A key for PyTorch models, which the Python package implements.
constexpr KeySpec pytorch(std::string_view pointer, Values values, std::string_view fallback,
                          std::string_view doc, const KeyDetails& details = {}) {
  return with_status(KeyStatus::pytorch, {}, key(pointer, values, fallback, doc, {}, details));
}

// The parts of the table.
std::span<const KeySpec> core_keys();
std::span<const KeySpec> optimizer_keys();
std::span<const KeySpec> precision_keys();
std::span<const KeySpec> zero_keys();
std::span<const KeySpec> offload_keys();
std::span<const KeySpec> checkpoint_keys();
std::span<const KeySpec> other_keys();
std::span<const KeySpec> zerorun_keys();

}  // namespace zerorun::keys
