#pragma once

#include <string_view>

#include "checkpoint/manifest.h"

namespace zerorun {

// Checks that a checkpoint is one of the engine's model: throws CheckpointError with all
// differences, and the nearest names of parameters that only one of them has. `checkpoint` names
// the checkpoint in the message. Not `strict`: either may have parameters that the other lacks.
void check_same_model(const Manifest& saved, const Manifest& engine, std::string_view checkpoint,
                      bool strict);

}  // namespace zerorun
