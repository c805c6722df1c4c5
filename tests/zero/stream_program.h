#pragma once

#include "tests/zero/toy_model.h"

namespace zerorun::testing {

struct StreamSetting {
  int stage = 0;
  double offloaded = 0.0;  // part of the optimizer's states that is on the host
  OffloadDevice param = OffloadDevice::none;
  std::string optimizer = "AdamW";
};
inline void PrintTo(const StreamSetting& setting, std::ostream* out) {
  *out << fmt::format("stage {}, offloaded {}, parameters at home {}, {}", setting.stage,
                      setting.offloaded, static_cast<int>(setting.param), setting.optimizer);
}

// Several buckets, modules that are gathered again in backward, and two micro-steps.
inline Config stream_config(const StreamSetting& setting) {
  Config config;
  config.batch.accumulation_steps = 2;
  config.optimizer.type = setting.optimizer;
  config.zero.stage = setting.stage;
  config.zero.reduce_bucket_size = 300;
  config.zero.overlap_comm = true;
  config.zero.param_persistence_threshold = 10;
  config.zero.max_reuse_distance = 0;
  config.offload.param.device = setting.param;
  config.offload.sub_group_size = 256;
  if (setting.offloaded > 0) {
    config.offload.optimizer.device = OffloadDevice::cpu;
    config.offload.optimizer.ratio = setting.offloaded;
  }
  return config;
}

// Training code of any model that gives everything to the inline stream, on any device: forward
// adds the parameters up, the gradient is the parameter plus that sum. In fp32.
class StreamProgram {
 public:
  StreamProgram(Engine& engine, int rank)
      : engine_(engine),
        device_(engine.device()),
        rank_(rank),
        memory_(device_.allocate(kMax * sizeof(float), MemoryCategory::activations)),
        sum_(view_of(memory_, DType::fp32, kMax)) {}

  void batch() {
    while (!micro_step()) {
    }
  }
  void step() {
    batch();
    EXPECT_TRUE(engine_.step().applied);
  }

 private:
  bool micro_step() {
    Stream& stream = device_.inline_stream();
    device_.fill(stream, sum_, 0.125F * static_cast<float>(rank_));
    for (const std::string& module : modules_of(engine_)) {
      with_module(engine_, module, [&] {
        for (const ParameterId id : parameters_of(engine_, module)) {
          device_.add(stream, engine_.parameter(id), sum_.slice(0, engine_.numel(id)));
        }
      });
    }
    backward_pass(engine_, [&](ParameterId id) {
      const GradientView gradient = engine_.gradient(id);
      if (!gradient.accumulate) device_.fill(stream, gradient.view, 0.0F);
      device_.add(stream, engine_.parameter(id), gradient.view);
      device_.add(stream, sum_.slice(0, engine_.numel(id)), gradient.view);
      if (spec_of(engine_, id).alias_of.empty()) engine_.grad_ready(id);
    });
    return engine_.end_micro_step();
  }

  static constexpr int64_t kMax = 37 * 41;  // elements of a parameter, of the toy model

  Engine& engine_;
  Device& device_;
  const int rank_;
  const Buffer memory_;
  const TensorView sum_;
};

}  // namespace zerorun::testing
