#include "train/cpu/softmax.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "train/cpu/softmax.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// After foreach_target.h:
#include <hwy/contrib/math/math-inl.h>

#include "train/cpu/storage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zerorun::train {
namespace HWY_NAMESPACE {

HWY_INLINE float maximum(const float* row, int64_t numel) {
  const Floats d;
  auto largest = hn::Set(d, row[0]);
  for_vectors(numel, [&](int64_t i, auto part) HWY_ATTR {
    // Lanes beyond the part repeat the first score, so that they do not affect the maximum.
    largest = hn::Max(largest, keep(load(row + i, part), part, row[0]));
  });
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

// exp for arguments <= 0, whose results below 1e-37 are zero.
HWY_INLINE FloatVector exp_of(FloatVector x) {
  const Floats d;
  const auto value = hn::Exp(d, hn::Max(x, hn::Set(d, -87.0F)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0F)), value);
}

SoftmaxSums exponentiate_row(float* row, int64_t numel) {
  const float largest = maximum(row, numel);
  const auto shift = hn::Set(Floats(), largest);
  auto sums = hn::Zero(Floats());
  for_vectors(numel, [&](int64_t i, auto part) HWY_ATTR {
    const auto value = exp_of(hn::Sub(load(row + i, part), shift));
    store(value, row + i, part);
    sums = hn::Add(sums, keep(value, part));
  });
  const float sum = sum_of_lanes(sums);
  return {sum, largest + std::log(sum)};
}

float log_sum_exp_row(const float* row, int64_t numel) {
  const float largest = maximum(row, numel);
  const auto shift = hn::Set(Floats(), largest);
  auto sums = hn::Zero(Floats());
  for_vectors(numel, [&](int64_t i, auto part) HWY_ATTR {
    sums = hn::Add(sums, keep(exp_of(hn::Sub(load(row + i, part), shift)), part));
  });
  return largest + std::log(sum_of_lanes(sums));
}

void exponentiate_from_row(float* row, int64_t numel, float log_sum, float factor) {
  const auto shift = hn::Set(Floats(), log_sum);
  const auto factors = hn::Set(Floats(), factor);
  for_vectors(numel, [&](int64_t i, auto part) HWY_ATTR {
    const auto value = exp_of(hn::Sub(load(row + i, part), shift));
    store(hn::Mul(value, factors), row + i, part);
  });
}

void softmax_backward_row(const float* p, int64_t numel, float mean, float* ds) {
  const auto means = hn::Set(Floats(), mean);
  for_vectors(numel, [&](int64_t i, auto part) HWY_ATTR {
    store(hn::Mul(load(p + i, part), hn::Sub(load(ds + i, part), means)), ds + i, part);
  });
}

void scale_row(float* row, int64_t numel, float factor) {
  const auto factors = hn::Set(Floats(), factor);
  for_vectors(numel, [&](int64_t i, auto part)
                         HWY_ATTR { store(hn::Mul(load(row + i, part), factors), row + i, part); });
}

float dot_rows(const float* a, const float* b, int64_t numel) {
  auto sums = hn::Zero(Floats());
  for_vectors(numel, [&](int64_t i, auto part) HWY_ATTR {
    sums = hn::MulAdd(load(a + i, part), load(b + i, part), sums);
  });
  return sum_of_lanes(sums);
}

}  // namespace HWY_NAMESPACE
}  // namespace zerorun::train
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerorun::train {

HWY_EXPORT(exponentiate_row);
HWY_EXPORT(log_sum_exp_row);
HWY_EXPORT(exponentiate_from_row);
HWY_EXPORT(softmax_backward_row);
HWY_EXPORT(scale_row);
HWY_EXPORT(dot_rows);

SoftmaxSums exponentiate(float* row, int64_t numel) {
  return HWY_DYNAMIC_DISPATCH(exponentiate_row)(row, numel);
}

float log_sum_exp(const float* row, int64_t numel) {
  return HWY_DYNAMIC_DISPATCH(log_sum_exp_row)(row, numel);
}

void exponentiate_from(float* row, int64_t numel, float log_sum, float factor) {
  HWY_DYNAMIC_DISPATCH(exponentiate_from_row)(row, numel, log_sum, factor);
}

void softmax_backward(const float* p, int64_t numel, float mean, float* ds) {
  HWY_DYNAMIC_DISPATCH(softmax_backward_row)(p, numel, mean, ds);
}

void scale(float* row, int64_t numel, float factor) {
  HWY_DYNAMIC_DISPATCH(scale_row)(row, numel, factor);
}

float dot(const float* a, const float* b, int64_t numel) {
  return HWY_DYNAMIC_DISPATCH(dot_rows)(a, b, numel);
}

}  // namespace zerorun::train
#endif  // HWY_ONCE
