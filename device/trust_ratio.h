#pragma once

#include <cmath>
#include <cstdint>

#include "core/exact_term.h"
#include "device/host_device.h"
#include "zerorun/device.h"
#include "zerorun/exact_sum.h"

namespace zerorun {

// True if sums of what is on the host follow those of the device.
inline bool has_host_sums(TensorView sums, TensorView ratios) {
  return sums.numel > 2 * ratios.numel * ExactSum::kWords;
}

// Implements Device::trust_ratios for one of `count` parameters. Compiled without fused
// multiply-add, so that all devices compute the same bits.
ZR_HOST_DEVICE inline float trust_ratio(const int64_t* sums, bool has_host, int64_t count,
                                        int64_t parameter, const TrustRatioLimits& limits) {
  const auto norm_at = [=](int64_t index) {
    const int64_t* const words = sums + index * ExactSum::kWords;
    return sqrt(exact_value(words, has_host ? words + 2 * count * ExactSum::kWords : nullptr));
  };
  const double parameter_norm = norm_at(parameter);
  const double direction_norm = norm_at(count + parameter);
  if (parameter_norm == 0.0 || direction_norm == 0.0) return 1.0F;
  const double ratio = parameter_norm / direction_norm;
  const double limited = ratio < limits.smallest ? limits.smallest : ratio;
  return static_cast<float>(limited > limits.largest ? limits.largest : limited);
}

}  // namespace zerorun
