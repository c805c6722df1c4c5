#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/keys/key_spec.h"

namespace zerorun {

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
std::span<const KeySpec> compile_keys();
std::span<const KeySpec> zerorun_keys();

}  // namespace zerorun
