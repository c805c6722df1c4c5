#pragma once

#include <cstdint>

#include "zero/partition/sharded_model.h"

namespace zerorun {

// Bytes of the manifest of a checkpoint that the job would save: its tables of parameters and
// files. The texts of the program that saves (configuration, client state) come on top.
int64_t plan_manifest(const ShardedModel& model);

}  // namespace zerorun
