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

inline uint32_t largest_bits(const Values& values) {
  const hn::RebindToSigned<F32> d;  // magnitudes are below 2^31
  auto largest = hn::Zero(d);
  for (size_t i = 0; i < values.size(); i += hn::Lanes(d)) {
    const auto bits = hn::BitCast(d, load(F32(), values.data() + i));
    largest = hn::Max(largest, hn::And(bits, hn::Set(d, 0x7fffffff)));
  }
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(d, largest)));
}

template <int kBits>
void encode(const Values& values, float scale, Codes& codes) {
  const F32 d;
  const hn::Rebind<int8_t, F32> d8;
  const auto inverse = hn::Set(d, Quantized<kBits>::inverse_of(scale));
  const auto most = hn::Set(d, Quantized<kBits>::kLargest);
  for (size_t i = 0; i < values.size(); i += hn::Lanes(d)) {
    const auto scaled = hn::Mul(load(d, values.data() + i), inverse);
    const auto within = hn::Max(hn::Min(scaled, most), hn::Neg(most));
    hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(within)), d8, codes.data() + i);
  }
}

// Adds the decoded values to `sum`.
inline void add_decoded(const Codes& codes, float scale, Values& sum) {
  const F32 d;
  const hn::RebindToSigned<F32> d32;
  const hn::Rebind<int8_t, F32> d8;
  const auto scales = hn::Set(d, scale);
  for (size_t i = 0; i < sum.size(); i += hn::Lanes(d)) {
    const auto code = hn::PromoteTo(d32, hn::LoadU(d8, codes.data() + i));
    const auto value = hn::Mul(hn::ConvertTo(d, code), scales);
    store(d, hn::Add(load(d, sum.data() + i), value), sum.data() + i);
  }
}

template <int kBits>
void pack(const Codes& codes, std::byte* to) {
  if constexpr (kBits == 8) {
    std::memcpy(to, codes.data(), codes.size());
  } else {
    for (size_t i = 0; i < codes.size() / 2; ++i) {
      to[i] = static_cast<std::byte>((codes[2 * i] & 0xf) | (codes[2 * i + 1] << 4));
    }
  }
}

template <int kBits>
void unpack(const std::byte* from, Codes& codes) {
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

// Updates the quantization error of a block; sets it to zero if an element is not finite.
template <typename T>
void update_lost(const Values& values, const Codes& codes, float scale, float beta, T* to) {
  Values lost{};
  if (scale == scale) {
    Values decoded{};
    add_decoded(codes, scale, decoded);
    load_values(to, lost);
    for (size_t i = 0; i < lost.size(); ++i) {
      lost[i] = next_loss(lost[i], values[i] - decoded[i], beta);
    }
  }
  store_values(lost, to);
}

template <int kBits, typename T>
void quantize_block(const T* from, T* lost, float beta, std::byte* to) {
  Values values;
  load_values(from, values);
  if (lost != nullptr) {
    Values before;
    load_values(lost, before);
    for (size_t i = 0; i < values.size(); ++i) values[i] += before[i];
  }
  const float scale = Quantized<kBits>::scale_of(largest_bits(values));
  Codes codes;
  encode<kBits>(values, scale, codes);
  std::memcpy(to, &scale, sizeof(scale));
  pack<kBits>(codes, to + sizeof(scale));
  if (lost != nullptr) update_lost(values, codes, scale, beta, lost);
}

template <int kBits>
void quantize_range(TensorView src, TensorView dst, const Quantization& how, int64_t begin,
                    int64_t end) {
  const int64_t blocks = src.numel / kQuantizedBlock;
  with_floating(src.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    T* const lost = how.lost.as<T>();
    for (int64_t block = begin; block < end; ++block) {
      const int64_t at = block * kQuantizedBlock;
      const int64_t place = quantized_place(block, blocks, how.rows, how.columns);
      quantize_block<kBits>(src.as<const T>() + at, lost == nullptr ? nullptr : lost + at, how.beta,
                            dst.data + place * Quantized<kBits>::kNbytes);
    }
  });
}

template <int kBits>
void dequantize_range(TensorView src, TensorView dst, int parts, bool accumulate, int64_t begin,
                      int64_t end) {
  const int64_t blocks = dst.numel / kQuantizedBlock;
  with_floating(dst.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    for (int64_t block = begin; block < end; ++block) {
      T* const to = dst.as<T>() + block * kQuantizedBlock;
      Values sum{};
      for (int64_t part = 0; part < parts; ++part) {
        const std::byte* const from =
            src.data + (part * blocks + block) * Quantized<kBits>::kNbytes;
        float scale = 0;
        std::memcpy(&scale, from, sizeof(scale));
        Codes codes;
        unpack<kBits>(from + sizeof(scale), codes);
        add_decoded(codes, scale, sum);
      }
      if (accumulate) {
        Values before;
        load_values(to, before);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] = before[i] + sum[i];
      }
      store_values(sum, to);
    }
  });
}

void quantize_blocks(TensorView src, TensorView dst, const Quantization& how, int64_t begin,
                     int64_t end) {
  if (how.bits == 8) return quantize_range<8>(src, dst, how, begin, end);
  quantize_range<4>(src, dst, how, begin, end);
}

void dequantize_blocks(TensorView src, TensorView dst, int bits, int parts, bool accumulate,
                       int64_t begin, int64_t end) {
  if (bits == 8) return dequantize_range<8>(src, dst, parts, accumulate, begin, end);
  dequantize_range<4>(src, dst, parts, accumulate, begin, end);
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

void dequantize(TensorView src, TensorView dst, int bits, int parts, bool accumulate) {
  parallel_for(
      dst.numel / kQuantizedBlock, kGrain / kQuantizedBlock, [&](int64_t begin, int64_t end) {
        HWY_DYNAMIC_DISPATCH(dequantize_blocks)(src, dst, bits, parts, accumulate, begin, end);
      });
}

}  // namespace kernels
}  // namespace zerorun
#endif  // HWY_ONCE
