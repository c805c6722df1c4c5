// Vectorised conversion of 8-bit state blocks from and to fp32, with the same bits as
// device/block8.h on every instruction set.
#if defined(ZERORUN_DEVICE_CPU_BLOCK8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ZERORUN_DEVICE_CPU_BLOCK8_INL_H_
#undef ZERORUN_DEVICE_CPU_BLOCK8_INL_H_
#else
#define ZERORUN_DEVICE_CPU_BLOCK8_INL_H_
#endif

#include <hwy/highway.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "device/block8.h"
#include "device/cpu/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zerorun {
namespace HWY_NAMESPACE {

// Decodes kStateBlock codes.
template <bool is_signed>
void decode_block(const uint8_t* HWY_RESTRICT codes, float scale, float* HWY_RESTRICT values) {
  constexpr Block8 kCode{is_signed};
  const F32 d;
  const U32Of<F32> du;
  const hn::Rebind<uint8_t, F32> d8;
  const auto scales = hn::Set(d, scale);
  const auto offset = hn::Set(du, kCode.offset());
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < kStateBlock; i += lanes) {
    const auto code = hn::PromoteTo(du, hn::LoadU(d8, codes + i));
    const auto magnitude = is_signed ? hn::And(code, hn::Set(du, 0x7fU)) : code;
    auto bits = hn::ShiftLeft<Block8::kShift>(hn::Add(magnitude, offset));
    bits = hn::IfThenZeroElse(hn::Eq(magnitude, hn::Zero(du)), bits);
    if constexpr (is_signed) {
      bits = hn::Or(bits, hn::ShiftLeft<24>(hn::And(code, hn::Set(du, 0x80U))));
    }
    hn::StoreU(hn::Mul(hn::BitCast(d, bits), scales), d, values + i);
  }
}

// Encodes kStateBlock values; returns their scale.
template <bool is_signed>
float encode_block(const float* HWY_RESTRICT values, uint8_t* HWY_RESTRICT codes) {
  constexpr Block8 kCode{is_signed};
  const F32 d;
  const U32Of<F32> du;
  const hn::RebindToSigned<F32> di;
  const hn::Rebind<uint8_t, F32> d8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto positive = hn::Set(di, 0x7fffffff);
  auto largest = hn::Zero(di);
  for (int64_t i = 0; i < kStateBlock; i += lanes) {
    const auto bits = hn::BitCast(di, hn::LoadU(d, values + i));
    largest = hn::Max(largest, hn::And(bits, positive));
  }
  const float scale =
      Block8::scale_of_magnitude(static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest))));
  const bool usable = scale > 0.0F && std::isfinite(scale);
  const auto inverse = hn::Set(d, usable ? 1.0F / scale : 0.0F);
  // With a scale of zero or one that is not finite, all codes are equal.
  const auto fixed = hn::Set(di, scale == 0.0F ? 0 : static_cast<int32_t>(kCode.largest()));
  const auto half = hn::Set(di, 1 << (Block8::kShift - 1));
  const auto offset = hn::Set(di, static_cast<int32_t>(kCode.offset()));
  const auto least = hn::Set(di, is_signed ? 0 : 1);
  for (int64_t i = 0; i < kStateBlock; i += lanes) {
    const auto value = hn::LoadU(d, values + i);
    const auto bits = hn::BitCast(di, hn::Mul(hn::Abs(value), inverse));
    auto code = hn::Sub(hn::ShiftRight<Block8::kShift>(hn::Add(bits, half)), offset);
    code = hn::Max(code, least);
    if constexpr (is_signed) {
      const auto sign =
          hn::And(hn::BitCast(di, hn::ShiftRight<24>(hn::BitCast(du, value))), hn::Set(di, 0x80));
      code = hn::IfThenZeroElse(hn::Eq(code, hn::Zero(di)), hn::Or(code, sign));
    } else {
      code = hn::IfThenZeroElse(hn::RebindMask(di, hn::Eq(value, hn::Zero(d))), code);
    }
    if (!usable) code = fixed;
    hn::StoreU(hn::DemoteTo(d8, code), d8, codes + i);
  }
  return scale;
}

}  // namespace HWY_NAMESPACE
}  // namespace zerorun
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
