#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "device/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/update_kernel.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which decides what these contain.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "device/cpu/block8-inl.h"
#include "device/cpu/convert-inl.h"
#include "device/cpu/round-inl.h"
#include "device/update_rules.h"

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
  HWY_INLINE V sign(V a) const {
    return hn::IfThenElse(hn::Gt(hn::Abs(a), hn::Zero(d)), hn::CopySign(hn::Set(d, 1.0F), a), a);
  }
};

// Returns a pointer to an element of a view.
template <typename T>
T* at(TensorView view, int64_t i) {
  return view.data == nullptr ? nullptr : view.as<T>() + i;
}

// Marks that the parameter is the master itself, so that no further write is needed.
struct InPlace {};

template <typename Grad, typename Param>
struct Pointers {
  const Grad* HWY_RESTRICT grad;
  float* HWY_RESTRICT master;
  float* HWY_RESTRICT state0;
  float* HWY_RESTRICT state1;
  Param* HWY_RESTRICT param;
};

// One cache line of 16-bit parameters, two of fp32.
inline constexpr int64_t kTile = 32;
inline constexpr uintptr_t kLine = 64;

// Prefetch distance: far enough to hide a memory access, near enough to stay in the first-level
// cache.
template <class Rule, typename Grad, typename Param>
HWY_INLINE void prefetch(const Pointers<Grad, Param>& p, int64_t i) {
  constexpr int64_t kAhead = 4 * kTile;
  constexpr int64_t kFloatsOfLine = kLine / sizeof(float);
  const auto both_lines = [i](const float* stream) HWY_ATTR {
    hwy::Prefetch(stream + i + kAhead);
    hwy::Prefetch(stream + i + kAhead + kFloatsOfLine);
  };
  if constexpr (Rule::kReadsGrad) {
    hwy::Prefetch(p.grad + i + kAhead);
    if constexpr (sizeof(Grad) == sizeof(float)) hwy::Prefetch(p.grad + i + kAhead + kFloatsOfLine);
  }
  both_lines(p.master);
  if constexpr (Rule::kStates > 0) both_lines(p.state0);
  if constexpr (Rule::kStates > 1) both_lines(p.state1);
}

template <bool kThere, typename T>
HWY_INLINE hn::Vec<F32> load_if(const T* from, int64_t i) {
  if constexpr (kThere) {
    return load(F32(), from + i);
  } else {
    return hn::Zero(F32());
  }
}

template <class Rule, typename Grad, typename Param>
HWY_INLINE void update_tile(const Rule& rule, const Pointers<Grad, Param>& p, int64_t i) {
  const VectorMath math;
  const auto lanes = static_cast<int64_t>(hn::Lanes(math.d));
  for (const int64_t end = i + kTile; i < end; i += lanes) {
    auto master = hn::LoadU(math.d, p.master + i);
    auto state0 = load_if<(Rule::kStates > 0)>(p.state0, i);
    auto state1 = load_if<(Rule::kStates > 1)>(p.state1, i);
    const auto grad = load_if<Rule::kReadsGrad>(p.grad, i);
    const auto result = rule(math, grad, master, state0, state1);
    if constexpr (Rule::kWritesStates) {
      if constexpr (Rule::kStates > 0) hn::StoreU(state0, math.d, p.state0 + i);
      if constexpr (Rule::kStates > 1) hn::StoreU(state1, math.d, p.state1 + i);
    }
    if constexpr (Rule::kSteps) {
      hn::StoreU(master, math.d, p.master + i);
    } else {
      store(math.d, result, p.param + i);
    }
  }
}

template <typename Grad, typename Param>
HWY_INLINE void write_params(const Pointers<Grad, Param>& p, int64_t i) {
  if constexpr (!std::is_same_v<Param, InPlace>) {
    const F32 d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    for (const int64_t end = i + kTile; i < end; i += lanes) {
      store(d, hn::LoadU(d, p.master + i), p.param + i);
    }
  }
}

template <class Rule, typename Grad, typename Param>
HWY_INLINE void update_element(const Rule& rule, const Pointers<Grad, Param>& p, int64_t i) {
  float none = 0.0F;
  float& state0 = Rule::kStates > 0 ? p.state0[i] : none;
  float& state1 = Rule::kStates > 1 ? p.state1[i] : none;
  const float grad = Rule::kReadsGrad ? widen(p.grad[i]) : 0.0F;
  float master = p.master[i];
  const float result = rule(ScalarMath{}, grad, master, state0, state1);
  if constexpr (Rule::kSteps) p.master[i] = master;
  if constexpr (!std::is_same_v<Param, InPlace>) narrow(result, p.param + i);
}

template <class Rule, typename Grad, typename Param>
void update_elements(const Rule& the_rule, const Pointers<Grad, Param>& pointers, int64_t count) {
  // Local copies, to which no other pointer can refer, stay in registers across the stores.
  const Rule rule = the_rule;
  const Pointers<Grad, Param> p = pointers;
  int64_t i = 0;
  for (; i + kTile <= count; i += kTile) {
    prefetch<Rule>(p, i);
    update_tile(rule, p, i);
    // Written one tile later: conversions that wait for this tile's divisions would fill the
    // scheduler of an out-of-order core and delay the loads of the next tile.
    if (Rule::kSteps && i > 0) write_params(p, i - kTile);
  }
  if (Rule::kSteps && i > 0) write_params(p, i - kTile);
  for (; i < count; ++i) update_element(rule, p, i);
}

// Access to one tensor of the update, kStateBlock elements at a time: fp32 in place, other dtypes
// through a buffer in the first-level cache.
class Stage {
 public:
  // `tensor` is as in StochasticRounding. The second state is never negative.
  Stage(TensorView view, TensorView scales, uint32_t tensor)
      : view_(view), scales_(scales), rounding_{.tensor = tensor} {}

  // Starts a segment, to which the following values belong.
  void start(const UpdateSegment& segment) {
    rounding_.step = segment.scalars.step;
    rounding_.parameter = segment.parameter;
  }

  float* load(int64_t begin, int64_t count) {
    if (view_.dtype == DType::fp32) return at<float>(view_, begin);
    if (count < kStateBlock) std::fill_n(block_, kStateBlock, 0.0F);
    if (view_.dtype == DType::uint8) {
      decode(begin, count);
    } else {
      with_floating(view_.dtype,
                    [&]<typename T>(T*) { cast_elements(view_.as<T>() + begin, block_, count); });
    }
    return block_;
  }

  // `element` is the index within the parameter of the element at `begin`.
  void store(int64_t begin, int64_t count, int64_t element) {
    if (view_.dtype == DType::uint8) {
      encode(begin, count);
    } else if (view_.dtype == DType::bf16) {
      round(view_.as<Bf16>() + begin, count, element);
    } else if (view_.dtype == DType::fp16) {
      round(view_.as<Fp16>() + begin, count, element);
    }
  }

 private:
  bool is_signed() const { return rounding_.tensor != 2; }

  void decode(int64_t begin, int64_t count) {
    const uint8_t* codes = view_.as<uint8_t>() + begin;
    uint8_t last[kStateBlock] = {};
    if (count < kStateBlock) codes = std::copy_n(codes, count, last) - count;
    const float scale = scales_.as<float>()[begin / kStateBlock];
    is_signed() ? decode_block<true>(codes, scale, block_)
                : decode_block<false>(codes, scale, block_);
  }

  void encode(int64_t begin, int64_t count) {
    uint8_t last[kStateBlock];
    uint8_t* codes = count < kStateBlock ? last : view_.as<uint8_t>() + begin;
    scales_.as<float>()[begin / kStateBlock] =
        is_signed() ? encode_block<true>(block_, codes) : encode_block<false>(block_, codes);
    if (count < kStateBlock) std::copy_n(last, count, view_.as<uint8_t>() + begin);
  }

  template <typename T>
  void round(T* to, int64_t count, int64_t element) {
    constexpr int64_t kGroup = StochasticRounding::kGroup;
    T last[kStateBlock];
    T* rounded = count < kStateBlock ? last : to;
    for (int64_t i = 0; i < kStateBlock; i += kGroup) {
      round_group(rounding_, (element + i) / kGroup, block_ + i, rounded + i);
    }
    if (count < kStateBlock) std::copy_n(last, count, to);
  }

  const TensorView view_;
  const TensorView scales_;
  StochasticRounding rounding_;
  HWY_ALIGN float block_[kStateBlock] = {};
};

// Updates elements [begin, end) in place, for tensors that are all fp32 except gradient and
// parameter.
template <class Rule, typename Grad, typename Param>
void update_fused(const UpdateTensors& t, const UpdateSegment& segment, int64_t begin,
                  int64_t end) {
  Pointers<Grad, Param> p = {};
  p.master = at<float>(t.master, begin);
  if constexpr (Rule::kReadsGrad) p.grad = at<Grad>(t.grad, begin);
  if constexpr (Rule::kStates > 0) p.state0 = at<float>(t.states[0], begin);
  if constexpr (Rule::kStates > 1) p.state1 = at<float>(t.states[1], begin);
  if constexpr (!std::is_same_v<Param, InPlace>) p.param = at<Param>(t.param, begin);
  update_elements(Rule(segment.scalars), p, end - begin);
}

// The same update for any dtypes. It also converts gradient and parameter block by block, because a
// template instance for each pair of their dtypes would take long to compile.
template <class Rule>
class StagedUpdate {
 public:
  explicit StagedUpdate(const UpdateTensors& tensors)
      : tensors_(tensors),
        master_(tensors.master, {}, 0),
        states_{{tensors.states[0], tensors.scales[0], 1},
                {tensors.states[1], tensors.scales[1], 2}},
        grad_(tensors.grad, {}, 0) {}

  void operator()(const UpdateSegment& segment, int64_t begin, int64_t end) {
    const Rule rule(segment.scalars);
    master_.start(segment);
    for (Stage& state : states_) state.start(segment);
    for (; begin < end; begin += kStateBlock) {
      update_block(rule, segment, begin, std::min(kStateBlock, end - begin));
    }
  }

 private:
  using Param = std::conditional_t<Rule::kSteps, InPlace, float>;

  HWY_INLINE void update_block(const Rule& rule, const UpdateSegment& segment, int64_t begin,
                               int64_t count) {
    const UpdateTensors& t = tensors_;
    Pointers<float, Param> p = {};
    if constexpr (!Rule::kSteps) p.param = at<float>(t.param, begin);
    if constexpr (Rule::kReadsGrad) p.grad = grad_.load(begin, count);
    p.master = master_.load(begin, count);
    if constexpr (Rule::kStates > 0) p.state0 = states_[0].load(begin, count);
    if constexpr (Rule::kStates > 1) p.state1 = states_[1].load(begin, count);
    update_elements(rule, p, count);
    const int64_t element = segment.element + begin - segment.begin;
    if constexpr (Rule::kSteps) master_.store(begin, count, element);
    for (size_t k = 0; Rule::kWritesStates && k < Rule::kStates; ++k) {
      states_[k].store(begin, count, element);
    }
    if (!Rule::kSteps || t.param.data == t.master.data) return;
    with_floating(t.param.dtype,
                  [&]<typename T>(T*) { cast_elements(p.master, at<T>(t.param, begin), count); });
  }

  const UpdateTensors& tensors_;
  Stage master_;
  Stage states_[2];
  Stage grad_;
};

template <class Rule, typename Grad, typename Param>
void update_typed(const UpdateTensors& t, const kernels::Share<UpdateSegment>& share) {
  const auto is_fp32 = [](TensorView view) { return view.dtype == DType::fp32; };
  const bool fused = is_fp32(t.master) && is_fp32(t.states[0]) && is_fp32(t.states[1]) &&
                     t.grad.dtype == dtype_of<Grad>() &&
                     (t.param.data == t.master.data || !std::is_same_v<Param, InPlace>);
  if (!fused) return share.for_each(StagedUpdate<Rule>(t));
  share.for_each([&](const UpdateSegment& segment, int64_t begin, int64_t end) {
    update_fused<Rule, Grad, Param>(t, segment, begin, end);
  });
}

void update_share(const UpdateTensors& t, const kernels::Share<UpdateSegment>& share) {
  const UpdateRule rule = share.segments.front().scalars.rule;
  with_rule(rule, t.states[0].data != nullptr, [&]<typename Rule>(Rule*) {
    if constexpr (std::is_same_v<Rule, AdamRule>) {
      // The only rule for which an instance per dtype is worthwhile.
      with_floating(t.grad.dtype, [&]<typename Grad>(Grad*) {
        if (t.param.data == t.master.data) return update_typed<Rule, Grad, InPlace>(t, share);
        with_floating(t.param.dtype,
                      [&]<typename T>(T*) { update_typed<Rule, Grad, T>(t, share); });
      });
    } else if constexpr (Rule::kSteps) {
      update_typed<Rule, float, InPlace>(t, share);
    } else {
      update_typed<Rule, float, float>(t, share);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace zerorun
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerorun {

HWY_EXPORT(update_share);

namespace kernels {

void update(const UpdateTensors& tensors, std::span<const UpdateSegment> segments) {
  parallel_for_shares(segments, kStateBlock, [&](const Share<UpdateSegment>& share) {
    HWY_DYNAMIC_DISPATCH(update_share)(tensors, share);
  });
}

}  // namespace kernels
}  // namespace zerorun
#endif  // HWY_ONCE
