#include <array>
#include <cstring>

#include "core/parallel.h"
#include "device/cpu/kernels.h"
#include "device/quantized.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/quantize_kernel.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which decides what these contain.
#include <hwy/highway.h>

#include "device/cpu/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zerorun {
namespace HWY_NAMESPACE {

using Values = std::array<float, kQuantizedBlock>;
using Codes = std::array<int8_t, kQuantizedBlock>;
using Scales = std::array<float, Quantized<4>::kGroups>;  // of a block; with 8 bits the first is

template <typename T>
void load_values(const T* from, Values& to) {
  const F32 d;
  for (size_t i = 0; i < to.size(); i += hn::Lanes(d)) store(d, load(d, from + i), to.data() + i);
}

template <typename T>
void store_values(const Values& from, T* to) {
  const F32 d;
  for (size_t i = 0; i < from.size(); i += hn::Lanes(d)) store(d, load(d, from.data() + i), to + i);
}

// The scale of a group.
template <int kBits>
typename Quantized<kBits>::Scale scale_of(const float* values) {
  const F32 d;
  const U32Of<F32> du;
  auto largest = hn::Zero(du);
  for (size_t i = 0; i < Quantized<kBits>::kGroup; i += hn::Lanes(d)) {
    const auto bits = hn::BitCast(du, load(d, values + i));
    largest = hn::Max(largest, hn::Or(hn::ShiftLeft<1>(bits), hn::ShiftRight<31>(bits)));
  }
  return Quantized<kBits>::scale_of(hn::GetLane(hn::MaxOfLanes(du, largest)));
}

template <int kBits>
void encode(const Values& values, Scales& scales, Codes& codes) {
  using Format = Quantized<kBits>;
  const F32 d;
  const hn::Rebind<int8_t, F32> d8;
  for (size_t group = 0; group < Format::kGroups; ++group) {
    const size_t begin = group * Format::kGroup;
    const typename Format::Scale scale = scale_of<kBits>(values.data() + begin);
    scales[group] = widen(scale);
    const auto inverse = hn::Set(d, Format::inverse_of(scales[group]));
    for (size_t i = begin; i < begin + Format::kGroup; i += hn::Lanes(d)) {
      const auto scaled = hn::Mul(load(d, values.data() + i), inverse);
      const auto within =
          hn::Max(hn::Min(scaled, hn::Set(d, Format::kMost)), hn::Set(d, Format::kLeast));
      hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(within)), d8, codes.data() + i);
    }
  }
}

// Adds the decoded values to `sum`.
template <int kBits>
void add_decoded(const Codes& codes, const Scales& scales, Values& sum) {
  using Format = Quantized<kBits>;
  const F32 d;
  const hn::RebindToSigned<F32> d32;
  const hn::Rebind<int8_t, F32> d8;
  for (size_t i = 0; i < sum.size(); i += hn::Lanes(d)) {
    const auto code = hn::PromoteTo(d32, hn::LoadU(d8, codes.data() + i));
    const auto value = hn::Mul(hn::ConvertTo(d, code), hn::Set(d, scales[i / Format::kGroup]));
    store(d, hn::Add(load(d, sum.data() + i), value), sum.data() + i);
  }
}

template <int kBits>
void pack(const Scales& scales, const Codes& codes, std::byte* to) {
  using Format = Quantized<kBits>;
  for (size_t group = 0; group < Format::kGroups; ++group) {
    typename Format::Scale scale;
    narrow(scales[group], &scale);  // exact
    std::memcpy(to + group * sizeof(scale), &scale, sizeof(scale));
  }
  to += Format::kCodesBegin;
  if constexpr (kBits == 8) {
    std::memcpy(to, codes.data(), codes.size());
  } else {
    for (size_t i = 0; i < codes.size() / 2; ++i) {
      to[i] = static_cast<std::byte>((codes[2 * i] & 0xf) | (codes[2 * i + 1] << 4));
    }
  }
}

template <int kBits>
void unpack(const std::byte* from, Scales& scales, Codes& codes) {
  using Format = Quantized<kBits>;
  for (size_t group = 0; group < Format::kGroups; ++group) {
    typename Format::Scale scale;
    std::memcpy(&scale, from + group * sizeof(scale), sizeof(scale));
    scales[group] = widen(scale);
  }
  from += Format::kCodesBegin;
  if constexpr (kBits == 8) {
    std::memcpy(codes.data(), from, codes.size());
  } else {
    for (size_t i = 0; i < codes.size() / 2; ++i) {
      const auto both = static_cast<int8_t>(from[i]);
      codes[2 * i] = static_cast<int8_t>(static_cast<int8_t>(both << 4) >> 4);
      codes[2 * i + 1] = static_cast<int8_t>(both >> 4);
    }
  }
}

// Updates the quantization errors of a block; sets them to zero in a group with an element that is
// not finite.
template <int kBits>
void update_lost(const Values& values, const Codes& codes, const Scales& scales, float beta,
                 float* to) {
  Values decoded{};
  add_decoded<kBits>(codes, scales, decoded);
  Values lost;
  load_values(to, lost);
  for (size_t i = 0; i < lost.size(); ++i) {
    const float scale = scales[i / Quantized<kBits>::kGroup];
    lost[i] = scale == scale ? next_loss(lost[i], values[i] - decoded[i], beta) : 0.0F;
  }
  store_values(lost, to);
}

template <int kBits, typename T>
void quantize_block(const T* from, float* lost, float beta, std::byte* to) {
  Values values;
  load_values(from, values);
  if (lost != nullptr) {
    Values before;
    load_values(lost, before);
    for (size_t i = 0; i < values.size(); ++i) values[i] += before[i];
  }
  Scales scales;
  Codes codes;
  encode<kBits>(values, scales, codes);
  pack<kBits>(scales, codes, to);
  if (lost != nullptr) update_lost<kBits>(values, codes, scales, beta, lost);
}

template <int kBits>
void quantize_range(TensorView src, TensorView dst, const Quantization& how, int64_t begin,
                    int64_t end) {
  const int64_t blocks = src.numel / kQuantizedBlock;
  with_floating(src.dtype, [&]<typename T>(T*) {
    float* const lost = how.lost.as<float>();
    for (int64_t block = begin; block < end; ++block) {
      const int64_t at = block * kQuantizedBlock;
      const int64_t place = quantized_place(block, blocks, how.rows, how.columns);
      quantize_block<kBits>(src.as<const T>() + at, lost == nullptr ? nullptr : lost + at, how.beta,
                            dst.data + place * Quantized<kBits>::kNbytes);
    }
  });
}

inline void add_exact(TensorView from, int64_t at, Values& sum) {
  with_floating(from.dtype, [&]<typename T>(T*) {
    const F32 d;
    for (size_t i = 0; i < sum.size(); i += hn::Lanes(d)) {
      const auto value = load(d, from.as<const T>() + at + i);
      store(d, hn::Add(load(d, sum.data() + i), value), sum.data() + i);
    }
  });
}

template <int kBits>
void dequantize_range(TensorView src, TensorView dst, const Dequantization& how, int64_t begin,
                      int64_t end) {
  const int64_t blocks = dst.numel / kQuantizedBlock;
  const int exact_part = how.exact.data == nullptr ? -1 : how.exact_part;
  for (int64_t block = begin; block < end; ++block) {
    const int64_t at = block * kQuantizedBlock;
    Values sum{};
    for (int part = 0; part < how.parts; ++part) {
      if (part == exact_part) {
        add_exact(how.exact, at, sum);
        continue;
      }
      Scales scales;
      Codes codes;
      unpack<kBits>(src.data + (part * blocks + block) * Quantized<kBits>::kNbytes, scales, codes);
      add_decoded<kBits>(codes, scales, sum);
    }
    with_floating(dst.dtype, [&]<typename T>(T*) {
      T* const to = dst.as<T>() + at;
      if (how.accumulate) {
        Values before;
        load_values(to, before);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] = before[i] + sum[i];
      }
      store_values(sum, to);
    });
  }
}

void quantize_blocks(TensorView src, TensorView dst, const Quantization& how, int64_t begin,
                     int64_t end) {
  if (how.bits == 8) return quantize_range<8>(src, dst, how, begin, end);
  quantize_range<4>(src, dst, how, begin, end);
}

void dequantize_blocks(TensorView src, TensorView dst, const Dequantization& how, int64_t begin,
                       int64_t end) {
  if (how.bits == 8) return dequantize_range<8>(src, dst, how, begin, end);
  dequantize_range<4>(src, dst, how, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace zerorun
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerorun {

HWY_EXPORT(quantize_blocks);
HWY_EXPORT(dequantize_blocks);

namespace kernels {

void quantize(TensorView src, TensorView dst, const Quantization& how) {
  parallel_for(src.numel / kQuantizedBlock, kGrain / kQuantizedBlock,
               [&](int64_t begin, int64_t end) {
                 HWY_DYNAMIC_DISPATCH(quantize_blocks)(src, dst, how, begin, end);
               });
}

void dequantize(TensorView src, TensorView dst, const Dequantization& how) {
  parallel_for(dst.numel / kQuantizedBlock, kGrain / kQuantizedBlock,
               [&](int64_t begin, int64_t end) {
                 HWY_DYNAMIC_DISPATCH(dequantize_blocks)(src, dst, how, begin, end);
               });
}

}  // namespace kernels
}  // namespace zerorun
#endif  // HWY_ONCE
