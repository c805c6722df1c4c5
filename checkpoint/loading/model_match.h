#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/manifest.h"

namespace zerorun {

// Checks that a checkpoint is one of the engine's model: throws CheckpointError with all
// differences, and the nearest names of parameters that only one of them has. `checkpoint` names
// the checkpoint in the message. Not `strict`: either may have parameters that the other lacks.
void check_same_model(const Manifest& saved, const Manifest& engine, std::string_view checkpoint,
                      bool strict);

// The parameter that was meant by a name which the other side does not have: the same one with or
// without a wrapper's prefix, else the nearest; empty when none is near.
std::string nearest_parameter(const std::string& name, const std::vector<std::string>& candidates);

}  // namespace zerorun
