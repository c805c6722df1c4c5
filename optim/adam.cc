#include "optim/adam.h"

#include <cmath>

#include "core/check.h"

namespace zerorun {

namespace {

// 1 - beta^step in double: in fp32 the difference would lose all digits at the first steps.
float bias_correction(double beta, int64_t step) {
  return static_cast<float>(1.0 - std::pow(beta, static_cast<double>(step)));
}

}  // namespace

void Adam::step(Device& device, Stream& stream, int64_t step, float grad_scale,
                const ParameterGroup& group, const OptimizerSegment& segment) const {
  ZR_CHECK(step >= 1, "got step {}, expected 1 or more", step);
  ZR_CHECK(segment.states.size() == state_names_.size(), "got {} states, expected {}",
           segment.states.size(), state_names_.size());
  const AdamScalars scalars = {
      .lr = group.lr,
      .beta1 = config_.beta1,
      .beta2 = config_.beta2,
      .eps = config_.eps,
      .weight_decay = group.weight_decay,
      .decoupled = decay_ == Decay::decoupled,
      .bias_correction1 = config_.bias_correction ? bias_correction(config_.beta1, step) : 1.0F,
      .bias_correction2 = config_.bias_correction ? bias_correction(config_.beta2, step) : 1.0F,
      .grad_scale = grad_scale,
  };
  device.adam(stream, scalars,
              {.master = segment.master,
               .exp_avg = segment.states[0],
               .exp_avg_sq = segment.states[1],
               .grad = segment.grad,
               .param = segment.param});
}

}  // namespace zerorun
