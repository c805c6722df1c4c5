#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
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

// What few keys have.
struct KeyDetails {
  std::string_view later = {};  // strings that DeepSpeed accepts and zerorun does not support yet
  std::string_view torch_classes = {};  // what only programs that import deepspeed can name
  std::string_view alias = {};          // another valid name, in the same block
  std::string_view idle = {};      // other values that mean the same as the default, separated by |
  std::string_view nickname = {};  // a wrong name that users may write, for suggestions
  // Key that must be set for this key to have any effect, whatever its value and status; or several
  // keys, separated by |, of which one must be set.
  std::string_view gate = {};
  // Of a block: the gate of its keys, unless they are without effect or always on.
  std::string_view gate_of_keys = {};
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
};

// One key of a ds_config.json: the source of parsing, checks, JSON Schema and documentation.
// size: one column of the key table each
struct KeySpec : KeyDetails {
  std::string_view pointer = {};  // JSON pointer, "/zero_optimization/stage"
  unsigned type = KeyType::block;
  std::string_view fallback = "null";  // default value as to_text writes it; "null": no default
  KeyRange range = {};
  std::string_view choices = {};  // allowed strings, separated by |; case does not matter
  KeyStatus status = KeyStatus::works;
  std::string_view doc = {};   // meaning, in a sentence with units
  std::string_view note = {};  // see KeyStatus
  KeyBinding binding = {};

  bool takes(unsigned types) const { return (type & types) != 0; }  // values of one of these types
  bool is_block() const { return takes(KeyType::block); }
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
  void add(KeySpec row, const KeySpec& block);

  std::deque<KeySpec> specs_;
  std::deque<std::string> texts_;  // pointers and gates that rows of the table name relatively
  std::vector<const KeySpec*> keys_;
  std::map<std::string, const KeySpec*, std::less<>> by_pointer_;
  std::map<std::string_view, std::vector<const KeySpec*>> by_parent_;
};

const KeyTable& key_table();

}  // namespace zerorun
