// The update of one element by each rule. All devices use these formulas.
//
// Code that is compiled once per instruction set (hwy/foreach_target.h) includes this file once per
// set, into the namespace of that set; other code includes it as usual. That is why it has the
// include guard of Highway's -inl.h files.
#if defined(ZERORUN_DEVICE_UPDATE_RULES_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ZERORUN_DEVICE_UPDATE_RULES_H_
#undef ZERORUN_DEVICE_UPDATE_RULES_H_
#else
#define ZERORUN_DEVICE_UPDATE_RULES_H_
#endif

#include <cmath>

#include "device/host_device.h"
#include "zerorun/device.h"

#ifdef HWY_NAMESPACE
HWY_BEFORE_NAMESPACE();
#endif
namespace zerorun {
#ifdef HWY_NAMESPACE
namespace HWY_NAMESPACE {
#endif

// The operations of the formulas, each correctly rounded to fp32 (IEEE 754). GPUs and vector units
// have their own implementation. Results are bitwise identical everywhere if no operation is
// approximate and none are contracted into a fused multiply-add. (Some instruction sets have no
// fused multiply-add, and emulating it would cost more than it saves in a bandwidth-bound kernel.)
struct ScalarMath {
  float set(float value) const { return value; }
  float add(float a, float b) const { return a + b; }
  float sub(float a, float b) const { return a - b; }
  float mul(float a, float b) const { return a * b; }
  float div(float a, float b) const { return a / b; }
  float sqrt(float a) const { return std::sqrt(a); }
  // -1, 0 or 1; NaN stays NaN.
  float sign(float a) const { return std::abs(a) > 0.0F ? std::copysign(1.0F, a) : a; }
};

// Base of the rules. A rule is constructed from the scalars of the step, which it rounds to fp32
// once, and is called for each element. It updates master and states and returns the new parameter.
// A rule with kSteps false does not change the master and returns an update direction.
template <int kStateCount>
struct Rule {
  static constexpr int kStates = kStateCount;
  static constexpr bool kReadsGrad = true;
  static constexpr bool kWritesStates = true;
  static constexpr bool kSteps = true;
  static constexpr bool kHasTrustRatio = false;  // lr is multiplied by one
};

// Weight decay: either decoupled, which scales the weights, or an L2 term that is added to the
// gradient.
struct Decay {
  explicit Decay(const UpdateScalars& s)
      : decoupled(s.decoupled), factor(s.decoupled ? s.lr * s.weight_decay : s.weight_decay) {}

  template <typename Math, typename Number>
  ZR_HOST_DEVICE void operator()(const Math& math, Number& grad, Number& master) const {
    const Number decay = math.mul(master, math.set(factor));
    if (decoupled) {
      master = math.sub(master, decay);
    } else {
      grad = math.add(grad, decay);
    }
  }

  bool decoupled;
  float factor;
};

// Running means of the gradient and of its square.
struct Moments {
  explicit Moments(const UpdateScalars& s)
      : beta2(static_cast<float>(s.beta2)),
        one_minus_beta1(static_cast<float>(1.0 - s.beta1)),
        one_minus_beta2(static_cast<float>(1.0 - s.beta2)) {}

  template <typename Math, typename Number>
  ZR_HOST_DEVICE void operator()(const Math& math, Number grad, Number& exp_avg,
                                 Number& exp_avg_sq) const {
    exp_avg = math.add(exp_avg, math.mul(math.set(one_minus_beta1), math.sub(grad, exp_avg)));
    exp_avg_sq = math.add(math.mul(exp_avg_sq, math.set(beta2)),
                          math.mul(math.mul(math.set(one_minus_beta2), grad), grad));
  }

  float beta2;
  float one_minus_beta1;
  float one_minus_beta2;
};

// Adam and AdamW: Kingma & Ba 2015, algorithm 1, and Loshchilov & Hutter 2019, algorithm 2, with
// the order of operations of torch.optim.Adam and AdamW (torch/optim/adam.py, _single_tensor_adam).
struct AdamRule : Rule<2> {
  explicit AdamRule(const UpdateScalars& s = {})
      : grad_scale(s.grad_scale),
        decay(s),
        moments(s),
        rsqrt_bias_correction2(1.0F / std::sqrt(s.bias_correction2)),
        eps(s.eps),
        step_size(s.lr / s.bias_correction1) {}

  template <typename Math, typename Number>
  ZR_HOST_DEVICE Number operator()(const Math& math, Number grad, Number& master, Number& exp_avg,
                                   Number& exp_avg_sq) const {
    grad = math.mul(grad, math.set(grad_scale));
    decay(math, grad, master);
    moments(math, grad, exp_avg, exp_avg_sq);
    const Number root = math.mul(math.sqrt(exp_avg_sq), math.set(rsqrt_bias_correction2));
    const Number denominator = math.add(root, math.set(eps));
    master = math.sub(master, math.div(math.mul(math.set(step_size), exp_avg), denominator));
    return master;
  }

  float grad_scale;
  Decay decay;
  Moments moments;
  float rsqrt_bias_correction2;
  float eps;
  float step_size;
};

// SGD as in torch.optim.SGD (torch/optim/sgd.py, _single_tensor_sgd), whose first step sets the
// momentum buffer to the gradient without dampening. With decoupled weight decay, which PyTorch's
// SGD does not have, it is the second pass of Muon. Without kMomentum it has no state.
template <bool kMomentum>
struct SgdRule : Rule<kMomentum ? 1 : 0> {
  explicit SgdRule(const UpdateScalars& s = {})
      : nesterov(s.nesterov),
        grad_scale(s.grad_scale),
        decay(s),
        momentum(static_cast<float>(s.beta1)),
        undampened(s.step == 1 ? 1.0F : static_cast<float>(1.0 - s.dampening)),
        lr(s.lr) {}

  template <typename Math, typename Number>
  ZR_HOST_DEVICE Number operator()(const Math& math, Number grad, Number& master,
                                   Number& momentum_buffer, Number& /*unused*/) const {
    grad = math.mul(grad, math.set(grad_scale));
    decay(math, grad, master);
    if constexpr (kMomentum) {
      momentum_buffer = math.add(math.mul(momentum_buffer, math.set(momentum)),
                                 math.mul(grad, math.set(undampened)));
      grad = nesterov ? math.add(grad, math.mul(math.set(momentum), momentum_buffer))
                      : momentum_buffer;
    }
    master = math.sub(master, math.mul(math.set(lr), grad));
    return master;
  }

  bool nesterov;
  float grad_scale;
  Decay decay;
  float momentum;
  float undampened;
  float lr;
};

// Adagrad (Duchi et al. 2011) as in torch.optim.Adagrad (torch/optim/adagrad.py,
// _single_tensor_adagrad).
struct AdagradRule : Rule<1> {
  explicit AdagradRule(const UpdateScalars& s = {})
      : grad_scale(s.grad_scale), weight_decay(s.weight_decay), eps(s.eps), lr(s.lr) {}

  template <typename Math, typename Number>
  ZR_HOST_DEVICE Number operator()(const Math& math, Number grad, Number& master, Number& sum,
                                   Number& /*unused*/) const {
    grad = math.mul(grad, math.set(grad_scale));
    grad = math.add(grad, math.mul(master, math.set(weight_decay)));
    sum = math.add(sum, math.mul(grad, grad));
    const Number denominator = math.add(math.sqrt(sum), math.set(eps));
    master = math.sub(master, math.div(math.mul(math.set(lr), grad), denominator));
    return master;
  }

  float grad_scale;
  float weight_decay;
  float eps;
  float lr;
};

// Lion (Chen et al. 2023, "Symbolic discovery of optimization algorithms", algorithm 2). (In
// DeepSpeed's kernels sign(0) is 1, so weights without gradient drift.)
struct LionRule : Rule<1> {
  explicit LionRule(const UpdateScalars& s = {})
      : grad_scale(s.grad_scale),
        weight_decay(s.lr * s.weight_decay),
        one_minus_beta1(static_cast<float>(1.0 - s.beta1)),
        one_minus_beta2(static_cast<float>(1.0 - s.beta2)),
        lr(s.lr) {}

  template <typename Math, typename Number>
  ZR_HOST_DEVICE Number operator()(const Math& math, Number grad, Number& master, Number& exp_avg,
                                   Number& /*unused*/) const {
    grad = math.mul(grad, math.set(grad_scale));
    master = math.sub(master, math.mul(master, math.set(weight_decay)));
    const Number change = math.sub(grad, exp_avg);
    const Number mean = math.add(exp_avg, math.mul(math.set(one_minus_beta1), change));
    exp_avg = math.add(exp_avg, math.mul(math.set(one_minus_beta2), change));
    master = math.sub(master, math.mul(math.set(lr), math.sign(mean)));
    return master;
  }

  float grad_scale;
  float weight_decay;
  float one_minus_beta1;
  float one_minus_beta2;
  float lr;
};

// First pass of Lamb (You et al. 2020, "Large batch optimization for deep learning") as in
// DeepSpeed's FusedLamb (csrc/lamb/fused_lamb_cuda_kernel.cu): the trust ratio is computed from
// moments without bias correction, and the corrections scale the step.
struct LambDirection : Rule<2> {
  static constexpr bool kSteps = false;

  explicit LambDirection(const UpdateScalars& s = {})
      : eps_inside_sqrt(s.eps_inside_sqrt),
        grad_scale(s.grad_scale),
        weight_decay(s.weight_decay),
        moments(s),
        eps(s.eps) {}

  template <typename Math, typename Number>
  ZR_HOST_DEVICE Number direction(const Math& math, Number master, Number exp_avg,
                                  Number exp_avg_sq) const {
    const Number denominator = eps_inside_sqrt ? math.sqrt(math.add(exp_avg_sq, math.set(eps)))
                                               : math.add(math.sqrt(exp_avg_sq), math.set(eps));
    return math.add(math.div(exp_avg, denominator), math.mul(math.set(weight_decay), master));
  }

  template <typename Math, typename Number>
  ZR_HOST_DEVICE Number operator()(const Math& math, Number grad, Number& master, Number& exp_avg,
                                   Number& exp_avg_sq) const {
    grad = math.mul(grad, math.set(grad_scale));
    moments(math, grad, exp_avg, exp_avg_sq);
    return direction(math, master, exp_avg, exp_avg_sq);
  }

  bool eps_inside_sqrt;
  float grad_scale;
  float weight_decay;
  Moments moments;
  float eps;
};

struct LambRule : Rule<2> {
  static constexpr bool kReadsGrad = false;
  static constexpr bool kWritesStates = false;
  static constexpr bool kHasTrustRatio = true;

  explicit LambRule(const UpdateScalars& s = {}) : parts(s), lr(s.lr) {}

  template <typename Math, typename Number>
  ZR_HOST_DEVICE Number operator()(const Math& math, Number /*grad*/, Number& master,
                                   Number& exp_avg, Number& exp_avg_sq) const {
    const Number direction = parts.direction(math, master, exp_avg, exp_avg_sq);
    master = math.sub(master, math.mul(math.set(lr), direction));
    return master;
  }

  LambDirection parts;
  float lr;
};

// First pass of Muon (Jordan 2024, "Muon"), before orthogonalization: Nesterov momentum of a
// running mean, as in torch.optim.Muon and DeepSpeed (runtime/zero/muon/original_muon.py,
// muon_update).
struct MuonDirection : Rule<1> {
  static constexpr bool kSteps = false;

  explicit MuonDirection(const UpdateScalars& s = {})
      : grad_scale(s.grad_scale),
        momentum(static_cast<float>(s.beta1)),
        one_minus_momentum(static_cast<float>(1.0 - s.beta1)) {}

  template <typename Math, typename Number>
  ZR_HOST_DEVICE Number operator()(const Math& math, Number grad, Number& /*master*/,
                                   Number& momentum_buffer, Number& /*unused*/) const {
    grad = math.mul(grad, math.set(grad_scale));
    momentum_buffer = math.add(
        momentum_buffer, math.mul(math.set(one_minus_momentum), math.sub(grad, momentum_buffer)));
    return math.add(grad, math.mul(math.set(momentum), math.sub(momentum_buffer, grad)));
  }

  float grad_scale;
  float momentum;
  float one_minus_momentum;
};

// Calls `call` with a null pointer to the type of the rule, to select a template. `has_state` says
// whether sgd has momentum.
template <typename Call>
inline void with_rule(UpdateRule rule, bool has_state, const Call& call) {
  switch (rule) {
    case UpdateRule::adam:
      return call(static_cast<AdamRule*>(nullptr));
    case UpdateRule::sgd:
      return has_state ? call(static_cast<SgdRule<true>*>(nullptr))
                       : call(static_cast<SgdRule<false>*>(nullptr));
    case UpdateRule::adagrad:
      return call(static_cast<AdagradRule*>(nullptr));
    case UpdateRule::lion:
      return call(static_cast<LionRule*>(nullptr));
    case UpdateRule::lamb_direction:
      return call(static_cast<LambDirection*>(nullptr));
    case UpdateRule::lamb:
      return call(static_cast<LambRule*>(nullptr));
    case UpdateRule::muon_direction:
      return call(static_cast<MuonDirection*>(nullptr));
  }
}

#ifdef HWY_NAMESPACE
}  // namespace HWY_NAMESPACE
#endif
}  // namespace zerorun
#ifdef HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
