#pragma once

#include "tests/common.h"
#include "tests/error_of.h"
#include "tests/harness.h"
#include "tests/zero/toy_model.h"
#include "zerorun/engine.h"
#include "zerorun/error.h"

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
  bool operator==(const ToyOutcome&) const = default;
};

// Makes a rank's device, to which it sets options.device, and its communicator.
using Connect = std::function<std::shared_ptr<Communicator>(CommunicatorOptions& options)>;
inline std::shared_ptr<Communicator> connect_on_cpu(CommunicatorOptions& options) {
  options.device = make_cpu_device();
  return make_communicator(options);
}

// A job of ranks that have an engine each, of the toy model unless it says otherwise.
struct ToyJob {
  Config config{};
  int ranks = 2;
  HostOf host_of{};
  std::vector<ParameterSpec> specs = toy_specs();
  std::vector<ParameterGroup> groups = ToyModel::groups();
  std::chrono::milliseconds limit = std::chrono::seconds(30);  // of a wait for peers
  Connect connect = connect_on_cpu;
};

// Calls `body` on each rank. A rank by itself has no store, so that it uses no NCCL.
template <typename Body>
void run_devices(const ToyJob& job, const Body& body) {
  const auto store = job.ranks > 1 ? make_memory_store() : nullptr;
  run_threads(job.ranks, [&](int rank) {
    CommunicatorOptions options = options_of_rank(rank, job.ranks, store, job.limit);
    if (job.host_of) options.host = job.host_of(rank);
    const auto comm = job.connect(options);
    body(*options.device, *comm);
  });
}

using EngineBody = std::function<void(Engine&, Communicator&)>;

// Calls `body` with an initialised engine on each rank.
inline void run_engines(const ToyJob& job, const EngineBody& body) {
  run_devices(job, [&](Device& device, Communicator& comm) {
    const auto engine = Engine::create(job.config, device, comm, job.specs, job.groups);
    toy_initialize(*engine);
    body(*engine, comm);
  });
}

// The same; returns the hash of the parameters after it.
inline uint64_t hash_after(const ToyJob& job, const EngineBody& body) {
  uint64_t hash = 0;
  run_engines(job, [&](Engine& engine, Communicator& comm) {
    body(engine, comm);
    const uint64_t found = engine.states().parameter_hash();
    if (comm.rank() == 0) hash = found;
  });
  return hash;
}

// The text of the ConfigError with which the engines of a job are refused.
inline std::string refusal(const ToyJob& job) {
  std::string text;
  std::mutex mutex;
  run_devices(job, [&](Device& device, Communicator& comm) {
    const std::string error = error_of<ConfigError>(
        [&] { Engine::create(job.config, device, comm, job.specs, job.groups); });
    const std::lock_guard lock(mutex);
    text = error;
  });
  return text;
}

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

// What the ranks have communicated since `before`.
inline CommStats since(const CommStats& before, const Communicator& comm) {
  CommStats stats = comm.stats();
  for (size_t op = 0; op < stats.by_op.size(); ++op) {
    stats.by_op[op].calls -= before.by_op[op].calls;
    stats.by_op[op].elements -= before.by_op[op].elements;
    stats.by_op[op].bytes -= before.by_op[op].bytes;
  }
  return stats;
}

// Uses a module for nothing.
inline void visit(Engine& engine, const std::string& module) {
  engine.gather(engine.module_id(module));
  engine.release(engine.module_id(module));
}

// Backward of one parameter, all of whose gradient is `value`.
inline void give_gradient(Engine& engine, ParameterId id, float value) {
  engine.device().fill(engine.device().inline_stream(), engine.gradient(id).view, value);
  engine.grad_ready(id);
}

// Takes steps on all ranks; `step` runs a batch and its step.
using EngineStep = std::function<StepResult(Engine&, Communicator&, int64_t step)>;
inline ToyOutcome train_by(const ToyJob& job, int64_t steps, const EngineStep& step,
                           const EngineBody& inspect = {}) {
  ToyOutcome outcome;
  run_engines(job, [&](Engine& engine, Communicator& comm) {
    ToyOutcome own;
    for (int64_t i = 0; i < steps; ++i) own.norms.push_back(step(engine, comm, i).grad_norm);
    own.hash = engine.states().parameter_hash();
    own.skipped = engine.states().progress().skipped_steps;
    if (inspect) inspect(engine, comm);
    if (comm.rank() == 0) outcome = own;
  });
  return outcome;
}

inline ToyOutcome toy_train(const Config& config, int world_size, int64_t steps = 4,
                            int64_t overflow_at = -1, const EngineBody& inspect = {},
                            const HostOf& host_of = {}) {
  const auto step = [&](Engine& engine, Communicator& comm, int64_t i) {
    return toy_step(engine, comm, config, i, i == overflow_at);
  };
  return train_by({config, world_size, host_of}, steps, step, inspect);
}

// An optimizer of the caller's: plain SGD.
inline Engine::ShardUpdate descent(float rate) {
  return [rate](std::span<const StateInterval> parts) {
    for (const StateInterval& part : parts) {
      for (int64_t i = 0; i < part.numel; ++i) {
        part.master.as<float>()[i] -= rate * part.grad.as<float>()[i];
      }
    }
  };
}

// Further steps change neither the memory that is held nor its peaks.
inline void expect_steps_allocate_nothing(Engine& engine, Communicator& comm,
                                          const Config& config) {
  const auto uses = [&] {
    std::vector<std::tuple<std::string_view, int64_t, int64_t>> all;
    for (int i = 0; i < kMemoryCategories; ++i) {
      const auto category = static_cast<MemoryCategory>(i);
      const MemoryUse use = engine.device().memory_use(category);
      all.emplace_back(name_of(category), use.live_bytes, use.peak_bytes);
    }
    return all;
  };
  toy_step(engine, comm, config, 0);
  const auto before = uses();
  for (int64_t step = 1; step < 4; ++step) toy_step(engine, comm, config, step);
  EXPECT_EQ(uses(), before);
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
