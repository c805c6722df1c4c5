#pragma once

#include <limits>
#include <string_view>
#include <vector>

#include "config/keys/key_binding.h"

namespace zerorun {

// Kinds of JSON value that a key takes; combined with |.
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
    infinity = 1U << 8,    // Infinity or "inf", beside integer
    block = 1U << 9,       // object whose keys are in the table
    free_form = 1U << 10,  // object with any content
  };
};

enum class KeyStatus {
  works,
  pytorch,     // works with PyTorch models; programs in C++ refuse what asks for something
  always_on,   // what `true` asks for is always so; `false` has no effect
  no_effect,   // accepted; `note` says why there is nothing to do
  deprecated,  // accepted; `note` is the pointer of the key that replaced it
  not_yet,     // an error when it asks for something; `note` says what to do instead
  removed,     // gone from DeepSpeed 0.19 too; otherwise as not_yet
};

// Limits of a number, or of each number of an array.
struct KeyRange {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool above_low = false;  // `low` itself is not allowed
};

// One key of a ds_config.json: all that parsing, checking, the schema and the documentation know.
// size: one column of the key table each
struct KeySpec {
  std::string_view pointer;  // JSON pointer, "/zero_optimization/stage"
  unsigned type = KeyType::block;
  std::string_view fallback = "null";  // default as to_text writes it; null: not given
  KeyRange range = {};
  std::string_view choices = {};  // allowed strings, separated by |; case does not matter
  std::string_view later = {};    // strings that DeepSpeed knows and zerorun does not yet
  KeyStatus status = KeyStatus::works;
  std::string_view doc = {};       // a sentence, with units
  std::string_view note = {};      // see KeyStatus
  std::string_view alias = {};     // another name at the same level, equally good
  std::string_view idle = {};      // values that ask for as little as the default, separated by |
  std::string_view nickname = {};  // a wrong name that people use; for suggestions
  // Key without which this one asks for nothing, whatever its value and status; or several,
  // separated by |, of which one is enough.
  std::string_view gate = {};
  // A parameter of some types of optimizer or scheduler only (the "type" beside its block).
  std::string_view used_by = {};         // those types, separated by |; empty: all
  std::string_view type_fallbacks = {};  // "Muon=0.02|...": types with a default of their own
  bool is_required = false;              // those types cannot do without it
  bool auto_waits = false;    // "auto" is not the default: the program or the run has to say
  bool refuses_null = false;  // null might mean something else than the default
  KeyBinding binding = {};

  bool is_block() const { return (type & KeyType::block) != 0; }
  // A value that asks for something is an error.
  bool is_unsupported() const {
    return gate.empty() && (status == KeyStatus::not_yet || status == KeyStatus::removed);
  }
  std::string_view name() const { return pointer.substr(pointer.rfind('/') + 1); }
  std::string_view parent() const { return pointer.substr(0, pointer.rfind('/')); }
  bool is_used_by(std::string_view type_name) const;
  // The default under that type.
  std::string_view fallback_for(std::string_view type_name) const;
};

// The strings of `choices` or `later`.
std::vector<std::string_view> split_choices(std::string_view choices);

inline constexpr KeyRange kPositive{.low = 1};  // integers
inline constexpr KeyRange kNonNegative{.low = 0};
inline constexpr KeyRange kAboveZero{.low = 0, .above_low = true};
// Numbers that are kept in fp32.
inline constexpr KeyRange kNonNegativeFloat{.low = 0, .high = std::numeric_limits<float>::max()};

// Short forms for keys without a binding.
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
// A key that asks for nothing unless `gate`, which is not supported yet, does.
constexpr KeySpec gated(std::string_view gate, std::string_view pointer, unsigned type,
                        std::string_view fallback, std::string_view doc) {
  KeySpec spec = not_yet(pointer, type, fallback, doc);
  spec.gate = gate;
  return spec;
}
// For PyTorch models, where the Python package acts on it.
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
// A key of a block that something else has to turn on.
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

}  // namespace zerorun
