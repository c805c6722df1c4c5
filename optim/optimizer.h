#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zerorun/config.h"
#include "zerorun/device.h"
#include "zerorun/engine.h"
#include "zerorun/tensor.h"

namespace zerorun {

// Contiguous elements of one shard that share hyperparameters; all views have the same numel.
struct OptimizerSegment {
  TensorView master;               // fp32
  TensorView grad;                 // fp32, bf16 or fp16
  TensorView param;                // where the updated value goes, in its dtype
  std::vector<TensorView> states;  // in the order of Optimizer::state_names()
};

// An update rule without state of its own: the states live in a StateStore, so they can be sharded,
// offloaded and saved without the rule knowing.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual std::span<const std::string> state_names() const = 0;
  // `step` counts from 1; `grad_scale` multiplies the gradient first.
  virtual void step(Device& device, Stream& stream, int64_t step, float grad_scale,
                    const ParameterGroup& group, const OptimizerSegment& segment) const = 0;
};

// Throws ConfigError naming the types that exist.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config);

}  // namespace zerorun
