#pragma once

#include <cmath>
#include <cstdint>

#include "amp/step_rule.h"
#include "core/exact_term.h"
#include "device/host_device.h"
#include "zerorun/device.h"
#include "zerorun/exact_sum.h"

namespace zerorun {

// Returns the words of the sum of what is on the host; null if nothing is.
inline const int64_t* host_words_of(const StepEvidence& evidence) {
  const bool has_host = evidence.words.numel > ExactSum::kWords;
  return has_host ? evidence.words.as<const int64_t>() + ExactSum::kWords : nullptr;
}

// Implements Device::decide on the data of its tensors. Compiled without fused multiply-add, so
// that the bits are those of the decision on the host.
ZR_HOST_DEVICE inline void decide_step(const int64_t* words, const int64_t* host_words,
                                       const int64_t* votes, const int64_t* same, int64_t ranks,
                                       const StepRule& rule, float* decision) {
  const bool finite = words[ExactSum::kDigits] == 0 &&
                      (host_words == nullptr || host_words[ExactSum::kDigits] == 0);
  const StepDecision step(rule, sqrt(exact_value(words, host_words)), finite);
  // Numbers are equal exactly if the mean of their squares is the square of their mean. The
  // products may wrap with very many ranks (not with a few hundred); the host detects the error
  // then.
  const auto sum = static_cast<uint64_t>(same[0]);
  const bool agreed = static_cast<uint64_t>(ranks) * static_cast<uint64_t>(same[1]) == sum * sum;
  const bool taken = step.applied && votes[0] > 0 && votes[1] == 0 && agreed;
  decision[0] = taken ? step.factor : 0.0F;
  decision[1] = taken ? 1.0F : 0.0F;
}

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
