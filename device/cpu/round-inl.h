// Vectorised stochastic rounding, with the same bits as amp/stochastic_rounding.h on every
// instruction set.
#if defined(ZERORUN_DEVICE_CPU_ROUND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ZERORUN_DEVICE_CPU_ROUND_INL_H_
#undef ZERORUN_DEVICE_CPU_ROUND_INL_H_
#else
#define ZERORUN_DEVICE_CPU_ROUND_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "amp/stochastic_rounding.h"
#include "device/cpu/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zerorun {
namespace HWY_NAMESPACE {

using U32 = U32Of<F32>;
using VU32 = hn::Vec<U32>;

HWY_INLINE VU32 high_product(VU32 a, uint32_t factor) {
  const U32 d;
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(d, static_cast<uint32_t>(uint64_t{hn::GetLane(a)} * factor >> 32));
#else
  const hn::Repartition<uint64_t, U32> d64;
  const auto b = hn::Set(d, factor);
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(d64, a))), b);
  const auto upper = hn::Set(d64, uint64_t{0xffffffff} << 32);
  return hn::BitCast(d, hn::Or(hn::ShiftRight<32>(even), hn::And(odd, upper)));
#endif
}

// Philox blocks, one per lane: four words each.
struct PhiloxLanes {
  VU32 w0, w1, w2, w3;
};

HWY_INLINE PhiloxLanes philox(const Philox::Block& counter, uint32_t column, Philox::Key key) {
  const U32 d;
  auto c0 = hn::Add(hn::Set(d, counter[0]), hn::Iota(d, column));
  auto c1 = hn::Set(d, counter[1]);
  auto c2 = hn::Set(d, counter[2]);
  auto c3 = hn::Set(d, counter[3]);
  for (int round = 0; round < Philox::kRounds; ++round) {
    const auto high0 = high_product(c0, Philox::kMultiplier0);
    const auto high1 = high_product(c2, Philox::kMultiplier1);
    const auto low0 = hn::Mul(c0, hn::Set(d, Philox::kMultiplier0));
    const auto low1 = hn::Mul(c2, hn::Set(d, Philox::kMultiplier1));
    c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(d, key[0]));
    c1 = low1;
    c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(d, key[1]));
    c3 = low0;
    key[0] += Philox::kWeyl0;
    key[1] += Philox::kWeyl1;
  }
  return {c0, c1, c2, c3};
}

template <class D>
HWY_INLINE void store_rounded(D d, hn::Vec<D> value, hn::Vec<U32Of<D>> random, Bf16* to) {
  const U32Of<D> du;
  const auto bits = hn::BitCast(du, value);
  const auto special = hn::Set(du, 0x7f800000U);
  const auto is_special = hn::Eq(hn::And(bits, special), special);
  const auto quiet =
      hn::IfThenElseZero(hn::RebindMask(du, hn::IsNaN(value)), hn::Set(du, 0x00400000U));
  const auto rounded = hn::IfThenElse(is_special, hn::Or(bits, quiet), hn::Add(bits, random));
  store_low_halves(d, hn::ShiftRight<16>(rounded), &to->bits);
}

template <class D>
HWY_INLINE void store_rounded(D d, hn::Vec<D> value, hn::Vec<U32Of<D>> random, Fp16* to) {
  const U32Of<D> du;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(du, value);
  const auto sign = hn::ShiftRight<16>(hn::And(bits, hn::Set(du, 0x80000000U)));
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffffU));
  const auto below = [&](uint32_t limit) HWY_ATTR {
    const auto less = hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, static_cast<int32_t>(limit)));
    return hn::RebindMask(du, less);
  };
  const auto drawn = hn::ShiftRight<3>(random);
  const auto normal =
      hn::ShiftRight<13>(hn::Sub(hn::Add(magnitude, drawn), hn::Set(du, 0x38000000U)));
  const auto is_subnormal = below(0x38800000U);
  // Only for small values, because a conversion to integers that overflows is undefined.
  const auto small = hn::IfThenElseZero(is_subnormal, magnitude);
  const auto units = hn::Mul(hn::BitCast(d, small), hn::Set(d, 0x1p24F));
  const auto fraction = hn::Mul(hn::ConvertTo(d, hn::BitCast(di, drawn)), hn::Set(d, 0x1p-13F));
  const auto subnormal = hn::BitCast(du, hn::ConvertTo(di, hn::Add(units, fraction)));
  const auto finite = hn::Or(sign, hn::IfThenElse(is_subnormal, subnormal, normal));
  const auto quiet_or_infinite =
      hn::Or(sign, hn::IfThenElse(below(0x7f800001U), hn::Set(du, 0x7c00U), hn::Set(du, 0x7e00U)));
  store_low_halves(d, hn::IfThenElse(below(0x47800000U), finite, quiet_or_infinite), &to->bits);
}

// Rounds kGroup values; the first is element group * kGroup.
template <typename T>
void round_group(const StochasticRounding& rounding, int64_t group,
                 const float* HWY_RESTRICT values, T* HWY_RESTRICT to) {
  const F32 d;
  const U32 du;
  const auto lower = hn::Set(du, 0xffffU);
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int64_t kColumns = StochasticRounding::kColumns;
  const Philox::Block counter = rounding.counter(group);
  for (int64_t column = 0; column < kColumns; column += lanes) {
    const PhiloxLanes random = philox(counter, static_cast<uint32_t>(column), rounding.key());
    const auto round = [&](int64_t row, VU32 bits) HWY_ATTR {
      const int64_t i = row * kColumns + column;
      store_rounded(d, hn::LoadU(d, values + i), bits, to + i);
    };
    round(0, hn::And(random.w0, lower));
    round(1, hn::ShiftRight<16>(random.w0));
    round(2, hn::And(random.w1, lower));
    round(3, hn::ShiftRight<16>(random.w1));
    round(4, hn::And(random.w2, lower));
    round(5, hn::ShiftRight<16>(random.w2));
    round(6, hn::And(random.w3, lower));
    round(7, hn::ShiftRight<16>(random.w3));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace zerorun
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
