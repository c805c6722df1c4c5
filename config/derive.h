#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "config/checks/check.h"
#include "zerorun/config.h"

namespace zerorun {

inline constexpr std::array<std::string_view, 3> kBatchKeys = {
    "/train_batch_size", "/train_micro_batch_size_per_gpu", "/gradient_accumulation_steps"};

// The typed form of a file's keys: their values, defaults that depend on other keys, and members
// that follow from several keys. Ignores values that are not valid.
Config derive_config(const KeyTable& table, const GivenKeys& keys);

// The dtype of the parameters, by the keys that decide it.
DType model_dtype(const GivenKeys& keys);

// Writes "auto" as the value of each key that only resolve_auto can set, because it has no default.
void mark_unresolved(ParsedConfig& parsed);

// Does what resolve_auto does, without an error for what is left over: returns those values.
std::vector<const ConfigValue*> resolve_known(ParsedConfig& parsed, const RunFacts& facts);

}  // namespace zerorun
