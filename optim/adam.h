#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "optim/optimizer.h"

namespace zerorun {

// Adam and AdamW as torch.optim has them; the formula is in device/adam_math.h. Learning rate and
// weight decay come from the parameter group, everything else from the configuration.
class Adam final : public Optimizer {
 public:
  // Weight decay shrinks the weights themselves (AdamW) or is an L2 term of the gradient.
  enum class Decay { decoupled, l2 };

  Adam(const OptimizerConfig& config, Decay decay) : config_(config), decay_(decay) {}

  std::span<const std::string> state_names() const override { return state_names_; }
  void step(Device& device, Stream& stream, int64_t step, float grad_scale,
            const ParameterGroup& group, const OptimizerSegment& segment) const override;

 private:
  const OptimizerConfig config_;
  const Decay decay_;
  const std::array<std::string, 2> state_names_ = {"exp_avg", "exp_avg_sq"};
};

}  // namespace zerorun
