#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "config/json/json_tree.h"
#include "zerorun/config.h"

namespace zerorun {

// Copies the value of a key, which was already checked against its KeySpec, into a Config and back.
struct KeyBinding {
  void (*set)(Config& config, const JsonNode& value) = nullptr;
  std::string (*get)(const Config& config) = nullptr;  // JSON text
};

void read_value(const JsonNode& node, bool& out);
void read_value(const JsonNode& node, int& out);
void read_value(const JsonNode& node, int64_t& out);
void read_value(const JsonNode& node, float& out);
void read_value(const JsonNode& node, double& out);
void read_value(const JsonNode& node, std::string& out);
void read_value(const JsonNode& node, DType& out);
void read_value(const JsonNode& node, std::vector<double>& out);  // a number or an array of numbers
void read_value(const JsonNode& node, std::vector<std::pair<std::string, int64_t>>& out);

std::string write_value(bool value);
std::string write_value(int64_t value);
std::string write_value(float value);
std::string write_value(double value);
std::string write_value(const std::string& value);
std::string write_value(DType value);
std::string write_value(const std::vector<double>& value);
std::string write_value(const std::vector<std::pair<std::string, int64_t>>& value);
inline std::string write_value(int value) { return write_value(int64_t{value}); }

// The texts of an enumeration in a file, in the order of its values.
template <typename Enum>
inline constexpr std::array<std::string_view, 0> kTexts{};
template <>
inline constexpr auto kTexts<GradientReduction> = std::to_array<std::string_view>({"mean", "sum"});
template <>
inline constexpr auto kTexts<OffloadDevice> = std::to_array<std::string_view>({"none", "cpu",
                                                                               "nvme"});
template <>
inline constexpr auto kTexts<WarmupShape> = std::to_array<std::string_view>({"log", "linear"});
template <>
inline constexpr auto kTexts<DecayShape> = std::to_array<std::string_view>({"linear", "cosine",
                                                                            "1-sqrt"});

template <typename Enum>
requires(kTexts<Enum>.size() > 0) void read_value(const JsonNode& node, Enum& out) {
  const auto found = std::ranges::find(kTexts<Enum>, node.text);
  if (found != kTexts<Enum>.end()) out = static_cast<Enum>(found - kTexts<Enum>.begin());
}
template <typename Enum>
requires(kTexts<Enum>.size() > 0) std::string write_value(Enum value) {
  return to_text(kTexts<Enum>[static_cast<size_t>(value)]);
}

// null: not given.
template <typename T>
void read_value(const JsonNode& node, std::optional<T>& out) {
  out.reset();
  if (node.kind != JsonNode::Kind::null) read_value(node, out.emplace());
}
template <typename T>
std::string write_value(const std::optional<T>& value) {
  return value ? write_value(*value) : "null";
}

// follow<&Config::zero, &ZeroConfig::stage>(config) is config.zero.stage.
template <auto First, auto... Rest, typename Object>
constexpr auto& follow(Object& object) {
  if constexpr (sizeof...(Rest) == 0) {
    return object.*First;
  } else {
    return follow<Rest...>(object.*First);
  }
}

// Returns the binding to a member of Config or of one of its parts.
template <auto... Members>
constexpr KeyBinding bind_member() {
  return {
      .set = [](Config& config,
                const JsonNode& value) { read_value(value, follow<Members...>(config)); },
      .get = [](const Config& config) { return write_value(follow<Members...>(config)); },
  };
}

// Like bind_member, for a value that is 0 or "" while it is not given.
template <auto... Members>
constexpr KeyBinding bind_if_given() {
  KeyBinding binding = bind_member<Members...>();
  binding.get = [](const Config& config) -> std::string {
    const auto& value = follow<Members...>(config);
    return value == std::decay_t<decltype(value)>() ? "null" : write_value(value);
  };
  return binding;
}

// Like bind_member, for a number for which 0 means the default.
template <auto... Members>
constexpr KeyBinding bind_unless_zero() {
  KeyBinding binding = bind_member<Members...>();
  binding.set = [](Config& config, const JsonNode& value) {
    if (value.number != 0) read_value(value, follow<Members...>(config));
  };
  return binding;
}

// Types of JSON values that a key accepts; can be combined with |.
struct KeyType {
  enum : unsigned {
    boolean = 1U << 0,
    integer = 1U << 1,
    number = 1U << 2,
    string = 1U << 3,
    strings = 1U << 4,     // array of strings
    integers = 1U << 5,    // array of integers
    betas = 1U << 6,       // two numbers in [0, 1)
    numbers = 1U << 7,     // array of numbers, one per parameter group
    infinity = 1U << 8,    // Infinity or "inf", in addition to integer
    block = 1U << 9,       // object whose keys are in the table
    free_form = 1U << 10,  // object with any content
  };
};

enum class KeyStatus {
  works,
  // supported for PyTorch models; in C++ programs a value other than the default is an error
  pytorch,
  always_on,   // zerorun always does what `true` asks for; `false` has no effect
  no_effect,   // accepted without effect; `note` says why
  deprecated,  // accepted; `note` is the pointer of the key that replaced it
  // not supported: a value other than the default is an error; `note` says what to do instead
  not_yet,
  removed,  // as not_yet; DeepSpeed 0.19 has removed the key, too
};

// Range of a number, or of each number of an array.
struct KeyRange {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool above_low = false;  // `low` itself is not allowed
};

// One key of a ds_config.json: the source of parsing, checks, JSON Schema and documentation.
// size: one column of the key table each
struct KeySpec {
  std::string_view pointer;  // JSON pointer, "/zero_optimization/stage"
  unsigned type = KeyType::block;
  std::string_view fallback = "null";  // default value as to_text writes it; "null": no default
  KeyRange range = {};
  std::string_view choices = {};  // allowed strings, separated by |; case does not matter
  std::string_view later = {};    // strings that DeepSpeed accepts and zerorun does not support yet
  std::string_view torch_classes = {};  // what only programs that import deepspeed can name
  KeyStatus status = KeyStatus::works;
  std::string_view doc = {};       // meaning, in a sentence with units
  std::string_view note = {};      // see KeyStatus
  std::string_view alias = {};     // another valid name, in the same block
  std::string_view idle = {};      // other values that mean the same as the default, separated by |
  std::string_view nickname = {};  // a wrong name that users may write, for suggestions
  // Key that must be set for this key to have any effect, whatever its value and status; or several
  // keys, separated by |, of which one must be set.
  std::string_view gate = {};
  // For parameters of some types of optimizer or scheduler only ("type" next to the block
  // `params`).
  std::string_view used_by = {};  // names of these types, separated by |; empty: all types
  // "Muon=0.02|...": defaults of types that differ from `fallback`
  std::string_view type_fallbacks = {};
  bool is_required = false;  // these types require the key
  // "auto" does not mean the default: the program or the run has to set the value
  bool auto_waits = false;
  // null is an error, because it could mean something other than the default
  bool refuses_null = false;
  KeyBinding binding = {};

  bool is_block() const { return (type & KeyType::block) != 0; }
  // True if a value other than the default is an error.
  bool is_unsupported() const {
    return gate.empty() && (status == KeyStatus::not_yet || status == KeyStatus::removed);
  }
  std::string_view name() const { return pointer.substr(pointer.rfind('/') + 1); }
  std::string_view parent() const { return pointer.substr(0, pointer.rfind('/')); }
  bool is_used_by(std::string_view type_name) const;
  // Returns the default for that type.
  std::string_view fallback_for(std::string_view type_name) const;
};

// Splits `choices`, `later` or `torch_classes` into its strings.
std::vector<std::string_view> split_choices(std::string_view choices);

inline constexpr KeyRange kPositive{.low = 1};  // integers
inline constexpr KeyRange kNonNegative{.low = 0};
inline constexpr KeyRange kAboveZero{.low = 0, .above_low = true};
// Numbers that are kept in fp32.
inline constexpr KeyRange kNonNegativeFloat{.low = 0, .high = std::numeric_limits<float>::max()};

// A key that works, by the columns that most keys have.
constexpr KeySpec key(std::string_view pointer, unsigned type, std::string_view fallback,
                      std::string_view doc, KeyBinding binding = {}, KeyRange range = {}) {
  return {.pointer = pointer,
          .type = type,
          .fallback = fallback,
          .range = range,
          .doc = doc,
          .binding = binding};
}
// Short forms for keys without binding.
constexpr KeySpec block(std::string_view pointer, std::string_view doc) {
  return {.pointer = pointer, .doc = doc};
}
constexpr KeySpec always_on(std::string_view pointer, std::string_view fallback,
                            std::string_view doc) {
  return {.pointer = pointer,
          .type = KeyType::boolean,
          .fallback = fallback,
          .status = KeyStatus::always_on,
          .doc = doc};
}
constexpr KeySpec no_effect(std::string_view pointer, unsigned type, std::string_view fallback,
                            std::string_view doc, std::string_view note) {
  return {.pointer = pointer,
          .type = type,
          .fallback = fallback,
          .status = KeyStatus::no_effect,
          .doc = doc,
          .note = note};
}
constexpr KeySpec not_yet(std::string_view pointer, unsigned type, std::string_view fallback,
                          std::string_view doc, std::string_view note = {}) {
  return {.pointer = pointer,
          .type = type,
          .fallback = fallback,
          .status = KeyStatus::not_yet,
          .doc = doc,
          .note = note};
}
// A key without effect unless `gate`, which is not supported yet, is set.
constexpr KeySpec gated(std::string_view gate, std::string_view pointer, unsigned type,
                        std::string_view fallback, std::string_view doc) {
  KeySpec spec = not_yet(pointer, type, fallback, doc);
  spec.gate = gate;
  return spec;
}
// A key for PyTorch models, which the Python package implements.
constexpr KeySpec pytorch(std::string_view pointer, unsigned type, std::string_view fallback,
                          std::string_view doc) {
  KeySpec spec = not_yet(pointer, type, fallback, doc);
  spec.status = KeyStatus::pytorch;
  return spec;
}
constexpr KeySpec removed(std::string_view pointer, unsigned type, std::string_view fallback,
                          std::string_view doc, std::string_view note = {}) {
  KeySpec spec = not_yet(pointer, type, fallback, doc, note);
  spec.status = KeyStatus::removed;
  return spec;
}
// A key of a block that `gate` turns on.
constexpr KeySpec with_gate(std::string_view gate, KeySpec spec) {
  spec.gate = gate;
  return spec;
}
constexpr KeySpec with_range(KeySpec spec, KeyRange range) {
  spec.range = range;
  return spec;
}
constexpr KeySpec with_idle(std::string_view values, KeySpec spec) {
  spec.idle = values;
  return spec;
}
constexpr KeySpec with_choices(KeySpec spec, std::string_view choices) {
  spec.choices = choices;
  return spec;
}

// The table of all keys, in the order of the documentation. It is immutable; pointers into it stay
// valid.
class KeyTable {
 public:
  KeyTable();
  std::span<const KeySpec* const> keys() const { return keys_; }
  // Returns the key with this pointer or alias, or nullptr.
  const KeySpec* find(std::string_view pointer) const;
  // Returns the key itself or, if it is deprecated, the key that replaced it.
  const KeySpec& current(const KeySpec& spec) const;
  // Returns the keys directly in a block ("" is the top level).
  std::span<const KeySpec* const> children(std::string_view block) const;

 private:
  std::vector<const KeySpec*> keys_;
  std::map<std::string, const KeySpec*, std::less<>> by_pointer_;
  std::map<std::string_view, std::vector<const KeySpec*>> by_parent_;
};

const KeyTable& key_table();

// The parts of the table, one per source file.
std::span<const KeySpec> core_keys();
std::span<const KeySpec> optimizer_keys();
std::span<const KeySpec> scheduler_keys();
std::span<const KeySpec> precision_keys();
std::span<const KeySpec> zero_keys();
std::span<const KeySpec> offload_keys();
std::span<const KeySpec> checkpoint_keys();
std::span<const KeySpec> monitor_keys();
std::span<const KeySpec> other_keys();
std::span<const KeySpec> zerorun_keys();

}  // namespace zerorun
