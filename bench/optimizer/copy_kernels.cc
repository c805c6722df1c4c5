#include "bench/optimizer/copy_kernels.h"

#include <atomic>

#include "core/parallel.h"
#include "device/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/optimizer/copy_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which decides what these contain.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace zerorun::bench {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Bytes = hn::CappedTag<uint8_t, 64>;

// One line of each stream at a time. `zero` keeps the compiler from seeing that nothing changes.
HWY_INLINE void rewrite(uint8_t* line, uint8_t zero) {
  const Bytes d;
  for (size_t i = 0; i < 64; i += hn::Lanes(d)) {
    hn::StoreU(hn::Xor(hn::LoadU(d, line + i), hn::Set(d, zero)), d, line + i);
  }
}

template <bool past_caches>
HWY_INLINE void copy(const uint8_t* HWY_RESTRICT from, uint8_t* HWY_RESTRICT to) {
  const Bytes d;
  for (size_t i = 0; i < 64; i += hn::Lanes(d)) {
    const auto bytes = hn::LoadU(d, from + i);
    if constexpr (past_caches) {
      hn::Stream(bytes, d, to + i);
    } else {
      hn::StoreU(bytes, d, to + i);
    }
  }
}

// `lines` of the 16-bit or fp32 gradient, each with the `ratio` lines of every fp32 state that
// belong to the same elements.
template <bool past_caches>
void copy_lines(const UpdateTensors& t, int64_t lines, int64_t ratio, uint8_t zero) {
  const bool in_place = t.param.data == t.master.data;
  uint8_t sink[64];
  for (int64_t i = 0; i < lines; ++i) {
    if (in_place) {
      copy<false>(t.grad.as<uint8_t>() + i * 64, sink);
      asm volatile("" : : "r"(sink) : "memory");  // the reads must happen
    } else {
      copy<past_caches>(t.grad.as<uint8_t>() + i * 64, t.param.as<uint8_t>() + i * 64);
    }
    for (int64_t k = i * ratio; k < (i + 1) * ratio; ++k) {
      rewrite(t.master.as<uint8_t>() + k * 64, zero);
      rewrite(t.states[0].as<uint8_t>() + k * 64, zero);
      rewrite(t.states[1].as<uint8_t>() + k * 64, zero);
    }
  }
  hwy::FlushStream();
}

void copy_range(const UpdateTensors& t, bool past_caches, uint8_t zero) {
  const auto lines = static_cast<int64_t>(t.grad.nbytes() / 64);
  const auto ratio = static_cast<int64_t>(sizeof(float) / size_of(t.grad.dtype));
  if (past_caches) {
    copy_lines<true>(t, lines, ratio, zero);
  } else {
    copy_lines<false>(t, lines, ratio, zero);
  }
}

uint64_t read_range(TensorView src) {
  const hn::CappedTag<uint64_t, 8> d;
  const auto* words = src.as<uint64_t>();
  const size_t count = src.nbytes() / 8;
  const size_t lanes = hn::Lanes(d);
  auto a = hn::Zero(d);
  auto b = hn::Zero(d);
  for (size_t i = 0; i + 2 * lanes <= count; i += 2 * lanes) {
    a = hn::Xor(a, hn::LoadU(d, words + i));
    b = hn::Xor(b, hn::LoadU(d, words + i + lanes));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Xor(a, b)));
}

}  // namespace HWY_NAMESPACE
}  // namespace zerorun::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerorun::bench {

HWY_EXPORT(copy_range);
HWY_EXPORT(read_range);

void copy_like_adam(const UpdateTensors& tensors, bool past_caches) {
  uint8_t zero = 0;
  asm volatile("" : "+r"(zero));
  parallel_for(tensors.grad.numel, kernels::kGrain, [&](int64_t begin, int64_t end) {
    const auto part = [&](TensorView view) { return view.slice(begin, end - begin); };
    const UpdateTensors range = {.master = part(tensors.master),
                                 .grad = part(tensors.grad),
                                 .param = part(tensors.param),
                                 .states = {part(tensors.states[0]), part(tensors.states[1])}};
    HWY_DYNAMIC_DISPATCH(copy_range)(range, past_caches, zero);
  });
}

uint64_t read_like_norm(TensorView src) {
  std::atomic<uint64_t> sum = 0;
  parallel_for(src.numel, kernels::kGrain, [&](int64_t begin, int64_t end) {
    sum += HWY_DYNAMIC_DISPATCH(read_range)(src.slice(begin, end - begin));
  });
  return sum;
}

}  // namespace zerorun::bench
#endif  // HWY_ONCE
