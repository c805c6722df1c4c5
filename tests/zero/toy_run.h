#pragma once

#include "tests/harness.h"
#include "tests/zero/toy_model.h"

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

// A rule of updates, with the dtypes of what it keeps.
struct Rule {
  std::string type;
  bool master_is_param = false;
  DType state_dtype = DType::fp32;
  double momentum = 0.0;

  std::string name() const {
    return type + (master_is_param ? "_16_bit_master" : "") +
           (state_dtype == DType::fp32 ? "" : "_16_bit_states") + (momentum > 0 ? "_momentum" : "");
  }
  void set(Config& config) const {
    config.optimizer.type = type;
    config.optimizer.momentum = momentum;
    config.optimizer.nesterov = momentum > 0;
    config.precision.master_is_param = master_is_param;
    config.precision.state_dtype = state_dtype;
  }
};
inline std::string name_of_rule(const ::testing::TestParamInfo<Rule>& info) {
  return info.param.name();
}

inline std::vector<Rule> every_rule() {
  std::vector<Rule> all = {{"Adam"}, {"AdamW"}, {"AdamW8bit"},
                           {"SGD"},  {"SGD"},   {"Adagrad"},
                           {"Lion"}, {"Lamb"},  {"Muon", false, DType::fp32, 0.95}};
  all[4].momentum = 0.9;
  for (const std::string type : {"AdamW", "SGD", "Adagrad", "Lion", "Lamb", "Muon"}) {
    all.push_back({type, true, DType::bf16, 0.9});
  }
  all.push_back({"AdamW", true, DType::fp32});
  all.push_back({"AdamW", false, DType::bf16});
  all.push_back({"AdamW8bit", true, DType::fp32});
  return all;
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
    const float scale = overflow && micro == 0 ? INFINITY : 1.0F;
    ToyModel::micro_step(engine, comm.rank(), micro, step, ToyModel::everything, scale);
  }
  return engine.step();
}

struct ToyOutcome {
  uint64_t hash = 0;
  std::vector<double> norms;  // by step
  int64_t skipped = 0;
  bool operator==(const ToyOutcome&) const = default;
};
inline void PrintTo(const ToyOutcome& outcome, std::ostream* out) {
  *out << fmt::format("hash {:x}, norms {}, {} skipped", outcome.hash, outcome.norms,
                      outcome.skipped);
}

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
  std::chrono::milliseconds limit = 30s;  // of a wait for peers
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

// The same; returns what it gives on rank 0.
template <typename Body>
auto result_of(const ToyJob& job, const Body& body) {
  std::invoke_result_t<Body, Engine&, Communicator&> result{};
  run_engines(job, [&](Engine& engine, Communicator& comm) {
    auto own = body(engine, comm);
    if (comm.rank() == 0) result = std::move(own);
  });
  return result;
}
// The hash of the parameters after it.
inline uint64_t hash_after(const ToyJob& job, const EngineBody& body) {
  return result_of(job, [&](Engine& engine, Communicator& comm) {
    body(engine, comm);
    return engine.states().parameter_hash();
  });
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

// Small buckets.
inline Config toy_config(int stage, DType dtype = DType::bf16, int64_t accumulation = 1) {
  Config config;
  config.precision.param_dtype = dtype;
  config.batch.accumulation_steps = accumulation;
  config.gradient_clipping = 1.0;
  config.zero.stage = stage;
  config.zero.reduce_bucket_size = 1000;
  config.zero.param_persistence_threshold = 100;
  return config;
}

// At stage 3 nothing stays: every gather moves something.
inline Config gathering_config(int stage, DType dtype = DType::fp32) {
  Config config;
  config.batch.accumulation_steps = 1;
  config.precision.param_dtype = dtype;
  config.zero.stage = stage;
  config.zero.param_persistence_threshold = 0;
  config.zero.max_reuse_distance = 0;
  config.share_parameters = false;
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

// The bytes that `step` communicates, by the groups that it is done in ("": all ranks).
using Traffic = std::map<std::string, std::map<Collective, int64_t>>;
inline Traffic traffic_of(Communicator& comm, const std::function<void()>& step) {
  std::mutex mutex;
  Traffic bytes;
  Subscription observed = comm.observe([&](const CollectiveSpan& span) {
    const std::lock_guard lock(mutex);
    const size_t colon = span.label.find(": ");
    bytes[colon == std::string::npos ? "" : span.label.substr(0, colon)][span.op] += span.bytes;
  });
  step();
  observed.reset();
  return bytes;
}

// Backward of one parameter, all of whose gradient is `value`.
inline void give_gradient(Engine& engine, ParameterId id, float value) {
  engine.device().fill(engine.device().inline_stream(), engine.gradient(id).view, value);
  engine.grad_ready(id);
}

// A micro-step whose gradients are all `value`, of any model.
inline bool even_micro_step(Engine& engine, float value) {
  for (const std::string& module : modules_of(engine)) visit(engine, module);
  backward_pass(engine, [&](ParameterId id) { give_gradient(engine, id, value); });
  return engine.end_micro_step();
}

inline int64_t live_bytes(Engine& engine, MemoryCategory category) {
  return engine.device().memory_use(category).live_bytes;
}
inline int64_t peak_bytes(Engine& engine, MemoryCategory category) {
  return engine.device().memory_use(category).peak_bytes;
}

// Takes steps on all ranks; `step` runs a batch and its step.
using EngineStep = std::function<StepResult(Engine&, Communicator&, int64_t step)>;
inline ToyOutcome train_by(const ToyJob& job, int64_t steps, const EngineStep& step) {
  return result_of(job, [&](Engine& engine, Communicator& comm) {
    ToyOutcome own;
    for (int64_t i = 0; i < steps; ++i) {
      const double norm = step(engine, comm, i).grad_norm;
      own.norms.push_back(std::isnan(norm) ? -1.0 : norm);  // which equals itself
    }
    own.hash = engine.states().parameter_hash();
    own.skipped = engine.states().progress().skipped_steps;
    return own;
  });
}

inline ToyOutcome toy_train(const ToyJob& job, int64_t steps = 4, int64_t overflow_at = -1) {
  return train_by(job, steps, [&](Engine& engine, Communicator& comm, int64_t step) {
    return toy_step(engine, comm, job.config, step, step == overflow_at);
  });
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

// This rank's gradient of a parameter for one of several contributions, in the model's dtype.
inline std::vector<float> gradient_of(const Engine& engine, ParameterId id, int rank, int64_t part,
                                      int64_t step) {
  std::vector<float> values(static_cast<size_t>(engine.numel(id)));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = ToyModel::noise(id, static_cast<int64_t>(i), rank, part, step);
  }
  return values;
}

inline void contribute(Engine& engine, ParameterId id, int rank, int64_t part, int64_t step) {
  std::vector<float> values = gradient_of(engine, id, rank, part, step);
  engine.contribute(id, view_of(std::span<float>(values)));
}

// The parameters that have gradients, last first, as backward gives them.
inline std::vector<ParameterId> trainable(const Engine& engine) {
  std::vector<ParameterId> ids;
  for (const ParameterId id : parameters_of(engine)) {
    if (spec_of(engine, id).trainable && spec_of(engine, id).alias_of.empty()) ids.push_back(id);
  }
  std::reverse(ids.begin(), ids.end());
  return ids;
}

// Backward that writes value(parameter, element) as every gradient.
template <typename Value>
void write_gradients(Engine& engine, const Value& value) {
  for (const ParameterId id : trainable(engine)) {
    const TensorView view = engine.gradient(id).view;
    for (int64_t i = 0; i < view.numel; ++i) ToyModel::store(view, i, value(id, i));
    engine.grad_ready(id);
  }
}

inline Config base_config(int stage, DType dtype = DType::bf16, int64_t accumulation = 1) {
  Config config = toy_config(stage, dtype, accumulation);
  config.zero.reduce_bucket_size = 700;
  config.gradient_clipping = 0.05;
  return config;
}

// The same on the host, in chunks of a few hundred elements.
inline Config offloaded(Config config, double ratio = 1.0,
                        OffloadDevice device = OffloadDevice::cpu) {
  config.offload.optimizer.device = device;
  config.offload.optimizer.nvme_path = test_paths::build();
  config.offload.optimizer.ratio = ratio;
  config.offload.sub_group_size = device == OffloadDevice::cpu ? 300 : 1000;
  config.offload.aio.block_size = 4096;
  return config;
}

// The same with parameters on NVMe, all of them.
inline Config param_on_nvme(Config config) {
  config.offload.param.device = OffloadDevice::nvme;
  config.offload.param.nvme_path = test_paths::build();
  config.offload.param.max_in_cpu = 0;
  config.offload.aio.block_size = 4096;
  config.offload.sub_group_size = std::min<int64_t>(config.offload.sub_group_size, 300);
  return config;
}

}  // namespace zerorun::testing
