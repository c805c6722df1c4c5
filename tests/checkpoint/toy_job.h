#pragma once

#include "tests/zero/toy_run.h"
#include "zerorun/checkpoint.h"

namespace zerorun::testing {

// Small buckets, and small groups of the states where they are offloaded.
inline Config job_config(int stage, DType dtype, OffloadDevice home = OffloadDevice::none) {
  Config config = offloaded(toy_config(stage, dtype), 1.0, home);
  config.zero.reduce_bucket_size = 900;
  config.zero.param_persistence_threshold = 0;
  config.offload.param.nvme_path = test_paths::build();
  config.offload.param.max_in_cpu = 300;
  config.offload.sub_group_size = 700;
  return config;
}

// The next steps of a run, with the gradients of this rank or of another.
inline void train(Engine& engine, int rank, int steps) {
  for (int i = 0; i < steps; ++i) {
    ToyModel::micro_step(engine, rank, 0, engine.states().progress().step_count);
    engine.step();
  }
}

}  // namespace zerorun::testing
