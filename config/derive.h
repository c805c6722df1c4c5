#pragma once

#include <string>
#include <vector>

#include "config/check.h"
#include "zerorun/config.h"

namespace zerorun {

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
