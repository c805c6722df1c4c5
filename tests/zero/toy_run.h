#pragma once

#include "tests/common.h"
#include "tests/harness.h"
#include "tests/zero/toy_model.h"
#include "zerorun/engine.h"

namespace zerorun::testing {

// ToyModel with two groups whose neighbours are updated together, and matrices for Muon.
inline std::vector<ParameterSpec> toy_specs() {
  std::vector<ParameterSpec> specs = ToyModel::specs();
  for (ParameterSpec& spec : specs) {
    spec.group = spec.module == "expert" ? 1 : 0;
    spec.use_muon =
        spec.trainable && spec.shape.size() == 2 && spec.module != "embed" && spec.module != "head";
  }
  return specs;
}

inline void toy_initialize(Engine& engine) {
  engine.initialize_parameters([](ParameterId id, int64_t begin, std::span<float> out) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = ToyModel::initial(id, begin + static_cast<int64_t>(i));
    }
  });
}

// One batch and its step; a gradient that is not finite in the steps of `overflows`.
inline StepResult toy_step(Engine& engine, Communicator& comm, const Config& config, int64_t step,
                           bool overflow = false) {
  const int64_t micro_steps = std::max<int64_t>(1, config.batch.accumulation_steps);
  for (int64_t micro = 0; micro < micro_steps; ++micro) {
    ToyModel::micro_step(
        engine, comm.rank(), micro, step, [](const std::string&, int) { return true; },
        overflow && micro == 0 ? INFINITY : 1.0F);
  }
  return engine.step();
}

struct ToyOutcome {
  uint64_t hash = 0;
  std::vector<double> norms;  // by step
  int64_t skipped = 0;
};

// A look at each rank's engine after training.
using Inspect = std::function<void(Engine&, Device&, Communicator&)>;

// Small buckets; accumulates nothing.
inline Config toy_config(int stage, DType dtype = DType::bf16) {
  Config config;
  config.precision.param_dtype = dtype;
  config.batch.accumulation_steps = 1;
  config.gradient_clipping = 1.0;
  config.zero.stage = stage;
  config.zero.reduce_bucket_size = 1000;
  config.zero.param_persistence_threshold = 100;
  return config;
}

inline ToyOutcome toy_train(const Config& config, int world_size, int64_t steps = 4,
                            int64_t overflow_at = -1, const Inspect& inspect = {},
                            const HostOf& host_of = {}) {
  ToyOutcome outcome;
  std::mutex mutex;
  const auto train = [&](Communicator& comm) {
    const auto device = make_cpu_device();
    const auto engine = Engine::create(config, *device, comm, toy_specs(), ToyModel::groups());
    toy_initialize(*engine);
    std::vector<double> norms;
    for (int64_t step = 0; step < steps; ++step) {
      norms.push_back(toy_step(*engine, comm, config, step, step == overflow_at).grad_norm);
    }
    const uint64_t hash = engine->states().parameter_hash();
    if (inspect) inspect(*engine, *device, comm);
    const std::lock_guard lock(mutex);
    if (comm.rank() == 0) outcome = {hash, norms, engine->states().progress().skipped_steps};
  };
  run_ranks(world_size, train, std::chrono::seconds(30), host_of);
  return outcome;
}

inline void expect_same(const ToyOutcome& got, const ToyOutcome& expected,
                        const std::string& what) {
  EXPECT_EQ(got.hash, expected.hash) << what;
  EXPECT_EQ(got.norms.size(), expected.norms.size()) << what;
  for (size_t i = 0; i < expected.norms.size(); ++i) {
    EXPECT_TRUE(got.norms[i] == expected.norms[i] ||
                (std::isnan(got.norms[i]) && std::isnan(expected.norms[i])))
        << what << ": norm of step " << i;
  }
  EXPECT_EQ(got.skipped, expected.skipped) << what;
}

}  // namespace zerorun::testing
