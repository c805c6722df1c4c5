#pragma once

#include "zerorun/device.h"

namespace zerorun {

// The factor that brings a gradient of global L2 norm `norm` to at most `max_norm`; 1 when
// `max_norm` is 0 (clipping off). As torch.nn.utils.clip_grad_norm_, whose 1e-6 keeps it finite; a
// norm that is not a number stays visible as such.
constexpr double clip_factor(double norm, double max_norm) {
  if (max_norm <= 0.0) return 1.0;
  const double factor = max_norm / (norm + 1e-6);
  return factor > 1.0 ? 1.0 : factor;
}

// A StepRule's decision about a reduced gradient of norm `sum_norm`. Kernels make it too, compiled
// without fused operations.
struct StepVerdict {
  constexpr StepVerdict(const StepRule& rule, double sum_norm, bool finite)
      : applied(finite || !rule.check_overflow),
        norm(sum_norm * rule.average),
        clip(applied ? clip_factor(norm, rule.max_norm) : 1.0),
        factor(static_cast<float>(rule.average * clip)) {}

  bool applied;
  double norm;  // of the average
  double clip;
  float factor;  // of the reduced gradient
};

}  // namespace zerorun
