#include "zerorun/dtype.h"

#include "tests/common.h"

namespace zerorun {
namespace {

// Every 16-bit value survives the way through fp32 and back.
TEST(DType, SixteenBitValuesRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffffU; ++bits) {
    const Bf16 bf{static_cast<uint16_t>(bits)};
    if (!std::isnan(to_float(bf))) {
      EXPECT_EQ(to_bf16(to_float(bf)).bits, bits);
    }
    const Fp16 half{static_cast<uint16_t>(bits)};
    if (!std::isnan(to_float(half))) {
      EXPECT_EQ(to_fp16(to_float(half)).bits, bits);
    }
  }
}

// Between two neighbours the nearer one wins; a tie goes to the even mantissa.
TEST(DType, RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7bffU; ++bits) {
    const float low = to_float(Fp16{static_cast<uint16_t>(bits)});
    const float high = to_float(Fp16{static_cast<uint16_t>(bits + 1)});
    const float middle = low + (high - low) / 2;
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    EXPECT_EQ(to_fp16(middle).bits, even);
    EXPECT_EQ(to_fp16(std::nextafter(middle, low)).bits, bits);
    EXPECT_EQ(to_fp16(std::nextafter(middle, high)).bits, bits + 1);
  }
  EXPECT_EQ(to_bf16(1.00390625F).bits, to_bf16(1.0F).bits);  // tie, 1.0 is even
  EXPECT_EQ(to_bf16(1.01171875F).bits, to_bf16(1.015625F).bits);
}

TEST(DType, OverflowIsInfinityAndNanStaysNan) {
  EXPECT_EQ(to_fp16(65519.0F).bits, 0x7bffU);
  EXPECT_EQ(to_fp16(65520.0F).bits, 0x7c00U);
  EXPECT_TRUE(std::isnan(to_float(to_fp16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isinf(to_float(to_bf16(std::numeric_limits<float>::max()))));
}

TEST(DType, NamesOfDeepSpeedAndTorch) {
  EXPECT_EQ(parse_dtype("torch.bfloat16"), DType::bf16);
  EXPECT_EQ(parse_dtype("half"), DType::fp16);
  EXPECT_THROW(parse_dtype("fp8"), ConfigError);
}

}  // namespace
}  // namespace zerorun
