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

// Converts the keys of a file to a Config: their values, defaults that depend on other keys, and
// members that depend on several keys. Ignores invalid values.
Config derive_config(const GivenKeys& keys);

// Returns the dtype of the parameters that the keys select.
DType model_dtype(const GivenKeys& keys);

// Sets the value of each key to "auto" that has no default, so that only resolve_auto can set it.
void mark_unresolved(ParsedConfig& parsed);

// Like resolve_auto, but returns the values that remain unresolved instead of throwing.
std::vector<const ConfigValue*> resolve_known(ParsedConfig& parsed, const RunFacts& facts);

}  // namespace zerorun
