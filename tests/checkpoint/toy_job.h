#pragma once

#include "tests/checkpoint/temporary_directory.h"
#include "tests/zero/toy_run.h"
#include "zerorun/checkpoint.h"

namespace zerorun::testing {

// Small buckets, and small groups of the states where they are offloaded.
inline Config job_config(int stage, DType dtype, OffloadDevice home = OffloadDevice::none) {
  Config config;
  config.batch.accumulation_steps = 1;
  config.precision.param_dtype = dtype;
  config.zero.stage = stage;
  config.zero.reduce_bucket_size = 900;
  config.zero.param_persistence_threshold = 0;
  config.offload.optimizer.device = home;
  config.offload.optimizer.nvme_path = test_paths::build();
  config.offload.param.nvme_path = test_paths::build();
  config.offload.param.max_in_cpu = 300;
  config.offload.sub_group_size = 700;
  config.offload.aio.block_size = 4096;
  return config;
}

inline std::unique_ptr<Engine> make_engine(const Config& config, Device& device, Communicator& comm,
                                           const std::vector<ParameterSpec>& specs = toy_specs()) {
  auto engine = Engine::create(config, device, comm, specs, ToyModel::groups());
  toy_initialize(*engine);
  return engine;
}

// Runs `body` on every rank, with an engine that has not trained.
template <typename Body>
void with_engine(int ranks, const Config& config, const Body& body) {
  run_ranks(ranks, [&](Communicator& comm) {
    const auto device = make_cpu_device();
    body(*make_engine(config, *device, comm), comm);
  });
}

// The next steps of a run.
inline void train(Engine& engine, const Communicator& comm, int steps) {
  for (int i = 0; i < steps; ++i) {
    ToyModel::micro_step(engine, comm.rank(), 0, engine.states().progress().step_count);
    engine.step();
  }
}

}  // namespace zerorun::testing
