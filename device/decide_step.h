#pragma once

#include <cmath>
#include <cstdint>

#include "amp/step_rule.h"
#include "core/exact_term.h"
#include "device/host_device.h"
#include "zerorun/device.h"
#include "zerorun/exact_sum.h"

namespace zerorun {

// Device::decide, with the data of its tensors; the bits of StepDecider, compiled without fused
// operations.
ZR_HOST_DEVICE inline void decide_step(const int64_t* words, const int64_t* votes,
                                       const int64_t* same, int64_t ranks, const StepRule& rule,
                                       float* decision) {
  const StepVerdict verdict(rule, sqrt(exact_value(words)), words[ExactSum::kDigits] == 0);
  // Equal numbers have the square of their mean as the mean of their squares. The products wrap,
  // which a few hundred ranks do not reach, and the host tells the error.
  const auto sum = static_cast<uint64_t>(same[0]);
  const bool agreed = static_cast<uint64_t>(ranks) * static_cast<uint64_t>(same[1]) == sum * sum;
  const bool taken = verdict.applied && votes[0] > 0 && votes[1] == 0 && agreed;
  decision[0] = taken ? verdict.factor : 0.0F;
  decision[1] = taken ? 1.0F : 0.0F;
}

}  // namespace zerorun
