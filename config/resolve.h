#pragma once

#include <string>
#include <vector>

#include "zerorun/config.h"

namespace zerorun {

// Writes "auto" as the value of what only resolve_auto can set, because it has no default.
void mark_unresolved(ParsedConfig& parsed);

// What resolve_auto does, without an error for what is left over: returns its pointers.
std::vector<std::string> resolve_known(ParsedConfig& parsed, const RunFacts& facts);

}  // namespace zerorun
