// Conversion of fp32 vectors from and to the storage dtypes, with the same bits as
// include/zerorun/dtype.h on every instruction set. Hardware instructions for binary16 would differ
// in NaNs, and Highway's emulation of them also in rounding.
#if defined(ZERORUN_DEVICE_CPU_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ZERORUN_DEVICE_CPU_CONVERT_INL_H_
#undef ZERORUN_DEVICE_CPU_CONVERT_INL_H_
#else
#define ZERORUN_DEVICE_CPU_CONVERT_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "device/convert.h"

HWY_BEFORE_NAMESPACE();
namespace zerorun {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// fp32 vectors whose number of lanes divides 32, for every register width.
using F32 = hn::CappedTag<float, 16>;

template <class D>
using U32Of = hn::RebindToUnsigned<D>;
template <class D>
using U16Of = hn::Rebind<uint16_t, D>;

#if HWY_TARGET == HWY_SCALAR || (HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2)
inline constexpr bool kHardwareFp16 = false;
#else
inline constexpr bool kHardwareFp16 = true;
#endif

// The lanes of `bits` are below 2^16.
template <class D, class V>
HWY_INLINE hn::Vec<U16Of<D>> low_halves(D /*d*/, V bits) {
  return hn::DemoteTo(U16Of<D>(), hn::BitCast(hn::RebindToSigned<D>(), bits));
}

template <class D, class V>
HWY_INLINE void store_low_halves(D d, V bits, uint16_t* to) {
  hn::StoreU(low_halves(d, bits), U16Of<D>(), to);
}

template <class D>
HWY_INLINE hn::Vec<U32Of<D>> load_low_halves(D /*d*/, const uint16_t* from) {
  return hn::PromoteTo(U32Of<D>(), hn::LoadU(U16Of<D>(), from));
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const float* from) {
  return hn::LoadU(d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const Bf16* from) {
  return hn::BitCast(d, hn::ShiftLeft<16>(load_low_halves(d, &from->bits)));
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const Fp16* from) {
  const U32Of<D> du;
  const auto half = load_low_halves(d, &from->bits);
  const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000U)));
  const auto shifted = hn::ShiftLeft<13>(hn::And(half, hn::Set(du, 0x7fffU)));
  if constexpr (kHardwareFp16) {
    const hn::Rebind<hwy::float16_t, D> d16;
    const auto value = hn::PromoteTo(d, hn::BitCast(d16, hn::LoadU(U16Of<D>(), &from->bits)));
    const auto nan = hn::Or(hn::Or(shifted, hn::Set(du, 0x7f800000U)), sign);
    return hn::IfThenElse(hn::IsNaN(value), hn::BitCast(d, nan), value);
  }
  const auto exponent = hn::And(shifted, hn::Set(du, 0x0f800000U));
  const auto rebias = hn::Set(du, 112U << 23);
  const auto normal = hn::Add(shifted, rebias);
  const auto special = hn::Add(normal, rebias);  // inf and nan: exponent 31 becomes 255
  // Subnormal: as the mantissa of a float in [2^-14, 2^-13), less 2^-14.
  const auto smallest_normal = hn::Set(du, 113U << 23);
  const auto subnormal = hn::BitCast(du, hn::Sub(hn::BitCast(d, hn::Add(shifted, smallest_normal)),
                                                 hn::BitCast(d, smallest_normal)));
  const auto finite = hn::IfThenElse(hn::Eq(exponent, hn::Zero(du)), subnormal, normal);
  const auto magnitude =
      hn::IfThenElse(hn::Eq(exponent, hn::Set(du, 0x0f800000U)), special, finite);
  return hn::BitCast(d, hn::Or(magnitude, sign));
}

template <class D>
HWY_INLINE void store(D d, hn::Vec<D> value, float* to) {
  hn::StoreU(value, d, to);
}

template <class D>
HWY_INLINE hn::Vec<U16Of<D>> to_16_bits(D d, hn::Vec<D> value, Bf16 /*tag*/) {
  const U32Of<D> du;
  const auto bits = hn::BitCast(du, value);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(du, 1U));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffU))));
  const auto quiet = hn::Or(upper, hn::Set(du, 0x0040U));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(value));
  return low_halves(d, hn::IfThenElse(is_nan, quiet, rounded));
}

template <class D>
HWY_INLINE hn::Vec<U16Of<D>> to_16_bits(D d, hn::Vec<D> value, Fp16 /*tag*/) {
  const U32Of<D> du;
  const hn::RebindToSigned<D> di;  // magnitudes are below 2^31, and signed compares are universal
  const auto bits = hn::BitCast(du, value);
  const auto sign = hn::ShiftRight<16>(hn::And(bits, hn::Set(du, 0x80000000U)));
  if constexpr (kHardwareFp16) {
    const auto nan = hn::Or(hn::And(bits, hn::Set(du, 0x80000000U)), hn::Set(du, 0x7fc00000U));
    const auto plain = hn::IfThenElse(hn::IsNaN(value), hn::BitCast(d, nan), value);
    return hn::BitCast(U16Of<D>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), plain));
  }
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffffU));
  const auto at_least = [&](uint32_t limit) HWY_ATTR {
    const auto greater =
        hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, static_cast<int32_t>(limit - 1)));
    return hn::RebindMask(du, greater);
  };
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1U));
  const auto rounded = hn::Add(hn::Add(magnitude, hn::Set(du, 0xfffU)), odd);
  const auto normal = hn::ShiftRight<13>(hn::Sub(rounded, hn::Set(du, 0x38000000U)));
  const auto half = hn::Set(d, 0.5F);  // its addition rounds to multiples of 2^-24
  const auto subnormal =
      hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), half)), hn::BitCast(du, half));
  auto result = hn::IfThenElse(at_least(0x38800000U), normal, subnormal);
  result = hn::IfThenElse(at_least(0x477ff000U), hn::Set(du, 0x7c00U), result);
  result = hn::IfThenElse(at_least(0x7f800001U), hn::Set(du, 0x7e00U), result);
  return low_halves(d, hn::Or(result, sign));
}

template <class D>
HWY_INLINE void store(D d, hn::Vec<D> value, Bf16* to) {
  hn::StoreU(to_16_bits(d, value, Bf16{}), U16Of<D>(), &to->bits);
}

template <class D>
HWY_INLINE void store(D d, hn::Vec<D> value, Fp16* to) {
  hn::StoreU(to_16_bits(d, value, Fp16{}), U16Of<D>(), &to->bits);
}

// dst = src, each element converted.
template <typename Src, typename Dst>
void cast_elements(const Src* HWY_RESTRICT src, Dst* HWY_RESTRICT dst, int64_t count) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) store(d, load(d, src + i), dst + i);
  for (; i < count; ++i) narrow(widen(src[i]), dst + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace zerorun
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
