#pragma once

#include <cstdint>

#include "zero/partition/sharded_model.h"

namespace zerorun {

// Returns the bytes of the manifest of a checkpoint: its tables of parameters and files. Texts of
// the program (configuration, client state) are not included.
int64_t plan_manifest(const ShardedModel& model);

}  // namespace zerorun
