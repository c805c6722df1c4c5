#include "amp/stochastic_rounding.h"
#include "device/block8.h"
#include "tests/common.h"
#include "zerorun/device.h"

namespace zerorun {
namespace {

// The known answers of the reference implementation (Random123, kat_vectors).
TEST(Philox, HasTheReferenceBits) {
  EXPECT_EQ(Philox::block({0, 0, 0, 0}, {0, 0}),
            (Philox::Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(
      Philox::block({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
      (Philox::Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      Philox::block({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (Philox::Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(StochasticRounding, BitsDifferByEveryPartOfTheKey) {
  const StochasticRounding rounding{1, 2, 3, 1};
  for (const StochasticRounding& other :
       {StochasticRounding{2, 2, 3, 1}, StochasticRounding{uint64_t{1} << 40 | 1, 2, 3, 1},
        StochasticRounding{1, 3, 3, 1}, StochasticRounding{1, 2, 4, 1},
        StochasticRounding{1, 2, 3, 2}}) {
    int same = 0;
    for (int64_t i = 0; i < 4096; ++i) same += other.bits(i) == rounding.bits(i) ? 1 : 0;
    EXPECT_LT(same, 8);
  }
}

template <typename Round>
void expect_unbiased(float value, double below, double above, const Round& round) {
  constexpr int kSeeds = 40'000;
  double sum = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    const StochasticRounding rounding{static_cast<uint64_t>(seed), 5, 6, 0};
    const double rounded = round(value, rounding.bits(1234));
    ASSERT_TRUE(rounded == below || rounded == above) << value << " became " << rounded;
    sum += rounded;
  }
  const double gap = above - below;
  const double share = (value - below) / gap;
  const double deviation = gap * std::sqrt(share * (1 - share) / kSeeds);
  EXPECT_NEAR(sum / kSeeds, value, 5 * deviation + gap * 0x1p-13) << value;
}

TEST(StochasticRounding, IsUnbiasedBetweenTheTwoNeighbours) {
  const auto bf16 = [](float value, uint32_t bits) { return to_float(round_to_bf16(value, bits)); };
  const auto fp16 = [](float value, uint32_t bits) { return to_float(round_to_fp16(value, bits)); };
  for (const auto& [share, sign] :
       each(std::array{0.001F, 0.2F, 0.5F, 0.93F}, std::array{1.0F, -1.0F})) {
    const auto check = [&](double low, double gap, const auto& round) {
      const auto value = static_cast<float>(sign * (low + share * gap));
      const double a = sign * low;
      const double b = sign * (low + gap);
      expect_unbiased(value, std::min(a, b), std::max(a, b), round);
    };
    check(1.0, 0x1p-7, bf16);
    check(0x1.fep-100, 0x1p-107, bf16);
    check(1.0, 0x1p-10, fp16);
    check(0x1p-14, 0x1p-24, fp16);
    check(0x1p-20, 0x1p-24, fp16);  // subnormal
    check(0.0, 0x1p-24, fp16);
  }
}

template <typename T, typename Round>
void expect_kept(uint16_t bits, const Round& round) {
  const float value = to_float(T{bits});
  for (const uint32_t random : {0U, 1U, 0x8000U, 0xffffU}) {
    const T rounded = round(value, random);
    EXPECT_TRUE(std::isnan(value) ? std::isnan(to_float(rounded)) : rounded.bits == bits) << bits;
  }
}

TEST(StochasticRounding, KeepsWhatSixteenBitsHold) {
  for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
    expect_kept<Bf16>(static_cast<uint16_t>(bits), round_to_bf16);
    expect_kept<Fp16>(static_cast<uint16_t>(bits), round_to_fp16);
  }
}

TEST(Block8, CodesRoundTripExactly) {
  for (const bool is_signed : {true, false}) {
    const Block8 code{is_signed};
    std::set<float> values;
    for (const float scale : {1.0F, 0.3F, 7e-20F, 3e30F, Block8::kMinScale}) {
      for (uint32_t c = 0; c < 256; ++c) {
        const float value = code.decode(static_cast<uint8_t>(c), scale);
        EXPECT_LE(std::abs(value), scale);
        if (scale == 1.0F) values.insert(value);
        if (is_signed && c == 0x80) continue;  // never written: minus zero
        EXPECT_EQ(code.encode(value, scale), c) << value;
      }
      EXPECT_EQ(code.decode(code.encode(scale, scale), scale), scale);
    }
    EXPECT_EQ(values.size(), is_signed ? 255U : 256U);
  }
}

TEST(Block8, RelativeErrorIsAtMostOneSixteenth) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> exponent(-14.0F, 0.0F);
  for (const bool is_signed : {true, false}) {
    const Block8 code{is_signed};
    for (int i = 0; i < 10'000; ++i) {
      const float scale = std::exp2(3 * exponent(random));
      const float value = scale * std::exp2(exponent(random));
      EXPECT_NEAR(code.decode(code.encode(value, scale), scale), value, value / 16);
      if (!is_signed) continue;
      EXPECT_EQ(code.encode(-value, scale), code.encode(value, scale) | 0x80);
    }
  }
}

TEST(Block8, SmallMeanSquaresStayPositiveAndSmallMeansBecomeZero) {
  EXPECT_GT(Block8{false}.decode(Block8{false}.encode(1e-30F, 1.0F), 1.0F), 0.0F);
  EXPECT_EQ(Block8{false}.encode(0.0F, 1.0F), 0);
  EXPECT_EQ(Block8{true}.encode(1e-30F, 1.0F), 0);
  EXPECT_EQ(Block8{true}.encode(-1e-30F, 1.0F), 0);
  const std::vector<float> tiny = {1e-38F, -1e-40F};
  EXPECT_EQ(Block8::scale_of(tiny), 0.0F);
  EXPECT_EQ(Block8{true}.decode(Block8{true}.encode(tiny[0], 0.0F), 0.0F), 0.0F);
  const std::vector<float> mixed = {1.0F, -3.0F, 2.0F};
  EXPECT_EQ(Block8::scale_of(mixed), 3.0F);
}

}  // namespace
}  // namespace zerorun
