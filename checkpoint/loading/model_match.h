#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/manifest.h"

namespace zerorun {

// Checks that a checkpoint fits the engine's model. Throws CheckpointError that lists all
// differences, with the nearest names for parameters that only one of them has. `checkpoint`: its
// name in the error. If not `strict`, either may have parameters that the other lacks.
void check_same_model(const Manifest& saved, const Manifest& engine, std::string_view checkpoint,
                      bool strict);

// Suggests a parameter for a name that the other side does not have: the same name with or without
// a wrapper's prefix, else the nearest. Empty if none is near.
std::string nearest_parameter(const std::string& name, const std::vector<std::string>& candidates);

}  // namespace zerorun
