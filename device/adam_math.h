// The Adam and AdamW update of one element: the only place that holds the formula.
//
// Code that is compiled once per instruction set (hwy/foreach_target.h) includes this file once per
// set, into that set's namespace; all other code includes it as usual. Hence the guard, which is
// that of Highway's own -inl.h files.
#if defined(ZERORUN_DEVICE_ADAM_MATH_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ZERORUN_DEVICE_ADAM_MATH_H_
#undef ZERORUN_DEVICE_ADAM_MATH_H_
#else
#define ZERORUN_DEVICE_ADAM_MATH_H_
#endif

#include <cmath>

#include "device/adam_factors.h"

#ifdef HWY_NAMESPACE
HWY_BEFORE_NAMESPACE();
#endif
namespace zerorun {
#ifdef HWY_NAMESPACE
namespace HWY_NAMESPACE {
#endif

// The operations the formula needs, each correctly rounded to fp32 (IEEE 754). A GPU or a vector
// unit brings its own; results are the same bits everywhere as long as no operation is approximate
// and none are contracted into a fused multiply-add. (Not fused: some instruction sets have no
// such operation, and emulating it would cost more than it saves in a bandwidth-bound kernel.)
struct ScalarMath {
  float set(float value) const { return value; }
  float add(float a, float b) const { return a + b; }
  float sub(float a, float b) const { return a - b; }
  float mul(float a, float b) const { return a * b; }
  float div(float a, float b) const { return a / b; }
  float sqrt(float a) const { return std::sqrt(a); }
};

// Order of operations of torch.optim.Adam and AdamW (torch/optim/adam.py, _single_tensor_adam),
// which implement Kingma & Ba 2015, algorithm 1, and Loshchilov & Hutter 2019, algorithm 2.
template <typename Math, typename Number>
inline void adam_update(const Math& math, const AdamFactors& f, Number grad, Number& master,
                        Number& exp_avg, Number& exp_avg_sq) {
  grad = math.mul(grad, math.set(f.grad_scale));
  const Number decay = math.mul(master, math.set(f.weight_decay));
  if (f.decoupled) {
    master = math.sub(master, decay);
  } else {
    grad = math.add(grad, decay);
  }
  exp_avg = math.add(exp_avg, math.mul(math.set(f.one_minus_beta1), math.sub(grad, exp_avg)));
  exp_avg_sq = math.add(math.mul(exp_avg_sq, math.set(f.beta2)),
                        math.mul(math.mul(math.set(f.one_minus_beta2), grad), grad));
  const Number root = math.mul(math.sqrt(exp_avg_sq), math.set(f.rsqrt_bias_correction2));
  const Number denominator = math.add(root, math.set(f.eps));
  master = math.sub(master, math.div(math.mul(math.set(f.step_size), exp_avg), denominator));
}

#ifdef HWY_NAMESPACE
}  // namespace HWY_NAMESPACE
#endif
}  // namespace zerorun
#ifdef HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
