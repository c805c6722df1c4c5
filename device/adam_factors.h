#pragma once

#include <cmath>

#include "zerorun/device.h"

namespace zerorun {

// The scalars of one Adam step as the update (device/adam_math.h) uses them, rounded to fp32 once.
struct AdamFactors {
  explicit AdamFactors(const AdamScalars& s)
      : decoupled(s.decoupled),
        grad_scale(s.grad_scale),
        weight_decay(s.decoupled ? s.lr * s.weight_decay : s.weight_decay),
        beta2(static_cast<float>(s.beta2)),
        one_minus_beta1(static_cast<float>(1.0 - s.beta1)),
        one_minus_beta2(static_cast<float>(1.0 - s.beta2)),
        rsqrt_bias_correction2(1.0F / std::sqrt(s.bias_correction2)),
        eps(s.eps),
        step_size(s.lr / s.bias_correction1) {}

  bool decoupled;
  float grad_scale;
  float weight_decay;
  float beta2;
  float one_minus_beta1;
  float one_minus_beta2;
  float rsqrt_bias_correction2;
  float eps;
  float step_size;
};

}  // namespace zerorun
