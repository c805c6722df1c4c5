#pragma once

#include <cmath>
#include <cstdint>

#include "core/exact_term.h"
#include "device/host_device.h"
#include "zerorun/device.h"
#include "zerorun/exact_sum.h"

namespace zerorun {

// Implements Device::trust_ratios for one of `count` parameters. Compiled without fused
// multiply-add, so that all devices compute the same bits.
ZR_HOST_DEVICE inline float trust_ratio(int64_t* sums, int64_t parts, int64_t count,
                                        int64_t parameter, const TrustRatioLimits& limits) {
  double norms[2] = {};
  for (int64_t of = 0; of < 2; ++of) {
    int64_t* const words = sums + (of * count + parameter) * ExactSum::kWords;
    for (int64_t part = 1; part < parts; ++part) {
      const int64_t* const more = words + part * 2 * count * ExactSum::kWords;
      for (int i = 0; i < ExactSum::kWords; ++i) words[i] += more[i];
    }
    norms[of] = sqrt(exact_value(words));
  }
  if (norms[0] == 0.0 || norms[1] == 0.0) return 1.0F;
  const double ratio = norms[0] / norms[1];
  const double limited = ratio < limits.smallest ? limits.smallest : ratio;
  return static_cast<float>(limited > limits.largest ? limits.largest : limited);
}

}  // namespace zerorun
