#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "zerorun/device.h"
#include "zerorun/engine.h"

namespace zerorun::testing {

// Several buckets, and modules that are gathered again in backward.
inline Config stream_config(int stage, OffloadDevice param) {
  Config config;
  config.batch.accumulation_steps = 2;
  config.precision.param_dtype = DType::fp32;
  config.zero.stage = stage;
  config.zero.reduce_bucket_size = 300;
  config.zero.overlap_comm = true;
  config.zero.param_persistence_threshold = 10;
  config.zero.max_reuse_distance = 0;
  config.offload.param.device = param;
  return config;
}

// The same with `ratio` of the optimizer's states offloaded, in chunks.
inline Config stream_config(int stage, OffloadDevice param, double ratio) {
  Config config = stream_config(stage, param);
  config.offload.sub_group_size = 256;
  if (ratio > 0) {
    config.offload.optimizer.device = OffloadDevice::cpu;
    config.offload.optimizer.ratio = ratio;
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

  void micro_step() {
    Stream& stream = device_.inline_stream();
    device_.fill(stream, sum_, 0.125F * static_cast<float>(rank_));
    std::vector<std::string> modules;
    for (const ParameterSpec& spec : engine_.parameters()) {
      if (modules.empty() || modules.back() != spec.module) modules.push_back(spec.module);
    }
    for (const std::string& module : modules) {
      engine_.gather(engine_.module_id(module));
      for (const ParameterId id : parameters_of(module)) {
        device_.add(stream, engine_.parameter(id), sum_.slice(0, engine_.numel(id)));
      }
      engine_.release(engine_.module_id(module));
    }
    std::reverse(modules.begin(), modules.end());
    for (const std::string& module : modules) backward(module);
    engine_.end_micro_step();
  }

 private:
  static constexpr int64_t kMax = 37 * 41;  // elements of a parameter, of the toy model

  std::vector<ParameterId> parameters_of(const std::string& module) const {
    std::vector<ParameterId> ids;
    for (size_t id = 0; id < engine_.parameters().size(); ++id) {
      if (engine_.parameters()[id].module == module) ids.push_back(static_cast<ParameterId>(id));
    }
    return ids;
  }

  void backward(const std::string& module) {
    Stream& stream = device_.inline_stream();
    engine_.gather(engine_.module_id(module));
    for (const ParameterId id : parameters_of(module)) {
      const ParameterSpec& spec = engine_.parameters()[static_cast<size_t>(id)];
      if (!spec.trainable) continue;
      const GradientView gradient = engine_.gradient(id);
      if (!gradient.accumulate) device_.fill(stream, gradient.view, 0.0F);
      device_.add(stream, engine_.parameter(id), gradient.view);
      device_.add(stream, sum_.slice(0, engine_.numel(id)), gradient.view);
      if (spec.alias_of.empty()) engine_.grad_ready(id);
    }
    engine_.release(engine_.module_id(module));
  }

  Engine& engine_;
  Device& device_;
  const int rank_;
  const Buffer memory_;
  const TensorView sum_;
};

}  // namespace zerorun::testing
