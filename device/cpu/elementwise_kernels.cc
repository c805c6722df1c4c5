#include <algorithm>
#include <bit>
#include <cstring>

#include "core/parallel.h"
#include "device/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/elementwise_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which decides what these contain.
#include <hwy/highway.h>

#include "device/cpu/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zerorun {
namespace HWY_NAMESPACE {

template <typename Src, typename Dst>
void add_elements(const Src* src, Dst* dst, int64_t count) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    store(d, hn::Add(load(d, dst + i), load(d, src + i)), dst + i);
  }
  for (; i < count; ++i) narrow(widen(dst[i]) + widen(src[i]), dst + i);
}

template <typename Dst>
void scale_elements(Dst* dst, float factor, int64_t count) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto factors = hn::Set(d, factor);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    store(d, hn::Mul(load(d, dst + i), factors), dst + i);
  }
  for (; i < count; ++i) narrow(widen(dst[i]) * factor, dst + i);
}

void cast_range(TensorView src, TensorView dst) {
  with_floating(src.dtype, [&]<typename Src>(Src*) {
    with_floating(dst.dtype, [&]<typename Dst>(Dst*) {
      cast_elements(src.as<Src>(), dst.as<Dst>(), src.numel);
    });
  });
}

void add_range(TensorView src, TensorView dst) {
  with_floating(src.dtype, [&]<typename Src>(Src*) {
    with_floating(dst.dtype, [&]<typename Dst>(Dst*) {
      add_elements(src.as<Src>(), dst.as<Dst>(), src.numel);
    });
  });
}

void scale_range(TensorView dst, float factor) {
  with_floating(dst.dtype,
                [&]<typename Dst>(Dst*) { scale_elements(dst.as<Dst>(), factor, dst.numel); });
}

}  // namespace HWY_NAMESPACE
}  // namespace zerorun
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerorun {

HWY_EXPORT(cast_range);
HWY_EXPORT(add_range);
HWY_EXPORT(scale_range);

namespace kernels {

namespace {

template <typename T>
void fill_elements(TensorView dst, T value) {
  std::fill_n(dst.as<T>(), dst.numel, value);
}

void fill_range(TensorView dst, float value) {
  // memset has the widest stores of the machine, and almost all fills are of zeros.
  if (std::bit_cast<uint32_t>(value) == 0) {
    std::memset(dst.data, 0, dst.nbytes());
    return;
  }
  switch (dst.dtype) {
    case DType::fp32:
      return fill_elements(dst, value);
    case DType::bf16:
      return fill_elements(dst, to_bf16(value));
    case DType::fp16:
      return fill_elements(dst, to_fp16(value));
    case DType::int64:
      return fill_elements(dst, static_cast<int64_t>(value));
    case DType::uint8:
      return fill_elements(dst, static_cast<uint8_t>(value));
  }
}

}  // namespace

void fill(TensorView dst, float value) {
  parallel_for(dst.numel, kGrain, [&](int64_t begin, int64_t end) {
    fill_range(dst.slice(begin, end - begin), value);
  });
}

void cast(TensorView src, TensorView dst) {
  if (src.dtype == dst.dtype && src.data == dst.data) return;
  parallel_for(dst.numel, kGrain, [&](int64_t begin, int64_t end) {
    const TensorView from = src.slice(begin, end - begin);
    const TensorView to = dst.slice(begin, end - begin);
    if (from.dtype == to.dtype) {
      std::memcpy(to.data, from.data, to.nbytes());
    } else {
      HWY_DYNAMIC_DISPATCH(cast_range)(from, to);
    }
  });
}

void add(TensorView src, TensorView dst) {
  parallel_for(dst.numel, kGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_range)(src.slice(begin, end - begin), dst.slice(begin, end - begin));
  });
}

void scale(TensorView dst, float factor) {
  parallel_for(dst.numel, kGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(scale_range)(dst.slice(begin, end - begin), factor);
  });
}

}  // namespace kernels
}  // namespace zerorun
#endif  // HWY_ONCE
