#include <cstdint>
#include <type_traits>

#include "core/parallel.h"
#include "device/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/adam_kernel.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which decides what these contain.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "device/adam_math.h"
#include "device/cpu/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zerorun {
namespace HWY_NAMESPACE {

struct VectorMath {
  using V = hn::Vec<F32>;
  F32 d;
  HWY_INLINE V set(float value) const { return hn::Set(d, value); }
  HWY_INLINE V add(V a, V b) const { return hn::Add(a, b); }
  HWY_INLINE V sub(V a, V b) const { return hn::Sub(a, b); }
  HWY_INLINE V mul(V a, V b) const { return hn::Mul(a, b); }
  HWY_INLINE V div(V a, V b) const { return hn::Div(a, b); }
  HWY_INLINE V sqrt(V a) const { return hn::Sqrt(a); }
};

// The parameter is the master copy itself: nothing more to write.
struct InPlace {};

template <typename Grad, typename Param>
struct AdamPointers {
  const Grad* HWY_RESTRICT grad;
  float* HWY_RESTRICT master;
  float* HWY_RESTRICT exp_avg;
  float* HWY_RESTRICT exp_avg_sq;
  Param* HWY_RESTRICT param;
};

// One cache line of 16-bit parameters, two of fp32.
inline constexpr int64_t kTile = 32;
inline constexpr uintptr_t kLine = 64;

// Far enough ahead to cover a memory access, near enough to stay in the first-level cache.
template <typename Grad, typename Param>
HWY_INLINE void prefetch(const AdamPointers<Grad, Param>& p, int64_t i) {
  constexpr int64_t kAhead = 4 * kTile;
  constexpr int64_t kFloatsOfLine = kLine / sizeof(float);
  hwy::Prefetch(p.grad + i + kAhead);
  if constexpr (sizeof(Grad) == sizeof(float)) hwy::Prefetch(p.grad + i + kAhead + kFloatsOfLine);
  for (const float* stream : {p.master, p.exp_avg, p.exp_avg_sq}) {
    hwy::Prefetch(stream + i + kAhead);
    hwy::Prefetch(stream + i + kAhead + kFloatsOfLine);
  }
}

template <typename Grad, typename Param>
HWY_INLINE void update_tile(const AdamFactors& f, const AdamPointers<Grad, Param>& p, int64_t i) {
  const VectorMath math;
  const auto lanes = static_cast<int64_t>(hn::Lanes(math.d));
  for (const int64_t end = i + kTile; i < end; i += lanes) {
    auto master = hn::LoadU(math.d, p.master + i);
    auto exp_avg = hn::LoadU(math.d, p.exp_avg + i);
    auto exp_avg_sq = hn::LoadU(math.d, p.exp_avg_sq + i);
    adam_update(math, f, load(math.d, p.grad + i), master, exp_avg, exp_avg_sq);
    hn::StoreU(master, math.d, p.master + i);
    hn::StoreU(exp_avg, math.d, p.exp_avg + i);
    hn::StoreU(exp_avg_sq, math.d, p.exp_avg_sq + i);
  }
}

template <typename Grad, typename Param>
HWY_INLINE void publish_tile(const AdamPointers<Grad, Param>& p, int64_t i) {
  if constexpr (!std::is_same_v<Param, InPlace>) {
    const F32 d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    for (const int64_t end = i + kTile; i < end; i += lanes) {
      store(d, hn::LoadU(d, p.master + i), p.param + i);
    }
  }
}

template <typename Grad, typename Param>
void adam_elements(const AdamFactors& factors, const AdamPointers<Grad, Param>& pointers,
                   int64_t count) {
  // Copies that nothing else can refer to stay in registers across the stores.
  const AdamFactors f = factors;
  const AdamPointers<Grad, Param> p = pointers;
  int64_t i = 0;
  for (; i + kTile <= count; i += kTile) {
    prefetch(p, i);
    update_tile(f, p, i);
    // One tile late: conversions that wait for this tile's divisions would fill the scheduler of an
    // out-of-order core and keep the next tile's loads out of it.
    if (i > 0) publish_tile(p, i - kTile);
  }
  if (i > 0) publish_tile(p, i - kTile);
  for (; i < count; ++i) {
    adam_update(ScalarMath{}, f, widen(p.grad[i]), p.master[i], p.exp_avg[i], p.exp_avg_sq[i]);
    if constexpr (!std::is_same_v<Param, InPlace>) narrow(p.master[i], p.param + i);
  }
}

void adam_range(const AdamFactors& factors, const AdamTensors& t) {
  with_floating(t.grad.dtype, [&](auto* grad_type) {
    using Grad = std::remove_pointer_t<decltype(grad_type)>;
    const auto run = [&](auto* param) {
      using Param = std::remove_pointer_t<decltype(param)>;
      const AdamPointers<Grad, Param> pointers = {t.grad.as<Grad>(), t.master.as<float>(),
                                                  t.exp_avg.as<float>(), t.exp_avg_sq.as<float>(),
                                                  param};
      adam_elements(factors, pointers, t.grad.numel);
    };
    if (t.param.data == t.master.data) {
      run(static_cast<InPlace*>(nullptr));
    } else {
      with_floating(t.param.dtype,
                    [&](auto* type) { run(t.param.as<std::remove_pointer_t<decltype(type)>>()); });
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace zerorun
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerorun {

HWY_EXPORT(adam_range);

namespace kernels {

void adam(const AdamScalars& scalars, const AdamTensors& tensors) {
  const AdamFactors factors(scalars);
  parallel_for(tensors.grad.numel, kGrain, [&](int64_t begin, int64_t end) {
    const auto part = [&](TensorView view) { return view.slice(begin, end - begin); };
    const AdamTensors range = {part(tensors.master), part(tensors.exp_avg),
                               part(tensors.exp_avg_sq), part(tensors.grad), part(tensors.param)};
    HWY_DYNAMIC_DISPATCH(adam_range)(factors, range);
  });
}

}  // namespace kernels
}  // namespace zerorun
#endif  // HWY_ONCE
