#pragma once

#include "zerorun/device.h"

namespace zerorun {

// Returns the factor that scales a gradient with global L2 norm `norm` down to at most `max_norm`;
// 1 if `max_norm` is 0 (no clipping). Same formula as torch.nn.utils.clip_grad_norm_, where 1e-6
// avoids a division by zero. If `norm` is NaN, so is the result.
constexpr double clip_factor(double norm, double max_norm) {
  if (max_norm <= 0.0) return 1.0;
  const double factor = max_norm / (norm + 1e-6);
  return factor > 1.0 ? 1.0 : factor;
}

// What a step does with a reduced gradient of norm `sum_norm`. Device::decide computes it for the
// update, and the host for its caller. GPU kernels are compiled without fused multiply-add, to get
// the same bits.
struct StepDecision {
  constexpr StepDecision(const StepRule& rule, double sum_norm, bool finite)
      : applied(finite || !rule.check_overflow),
        norm(sum_norm * rule.average),
        clip(applied ? clip_factor(norm, rule.max_norm) : 1.0),
        factor(static_cast<float>(rule.average * clip)) {}

  bool applied;
  double norm;  // norm of the averaged gradient
  double clip;
  float factor;  // factor of the reduced gradient: average, loss scale and clipping
};

}  // namespace zerorun
