// Floats in few bits, against the definition in float64.
#include <cmath>
#include <limits>

#include "tests/device/conformance.h"
#include "zerorun/error.h"

namespace zerorun::testing {
namespace {

// A block as the format's page says it: a scale, then integers.
struct Block {
  float scale = 0;
  std::vector<int> codes;
};

std::vector<Block> read_blocks(const std::vector<uint8_t>& bytes, int bits) {
  const auto size = static_cast<size_t>(quantized_nbytes(kQuantizedBlock, bits));
  std::vector<Block> blocks;
  for (size_t at = 0; at < bytes.size(); at += size) {
    Block& block = blocks.emplace_back();
    std::memcpy(&block.scale, &bytes[at], sizeof(float));
    for (size_t i = at + sizeof(float); i < at + size; ++i) {
      const int byte = bytes[i];
      for (int part = 0; part < 8 / bits; ++part) {
        const int code = (byte >> (part * bits)) & ((1 << bits) - 1);
        block.codes.push_back(code >= 1 << (bits - 1) ? code - (1 << bits) : code);
      }
    }
  }
  return blocks;
}

class QuantizeConformance : public DeviceConformance {
 protected:
  template <typename T>
  std::vector<uint8_t> quantize(const std::vector<T>& values, const Quantization& how) {
    const auto src = array(values);
    const auto nbytes = quantized_nbytes(static_cast<int64_t>(values.size()), how.bits);
    const auto dst = array(std::vector<uint8_t>(static_cast<size_t>(nbytes)), 4);
    device_->quantize(*stream_, src.view(), dst.view(), how);
    stream_->synchronize();
    return dst.host();
  }
  template <typename T>
  std::vector<T> dequantize(const std::vector<uint8_t>& bytes, std::vector<T> into, int bits,
                            int parts, bool accumulate) {
    const auto src = array(bytes, 4);
    const auto dst = array(into, 3);
    device_->dequantize(*stream_, src.view(), dst.view(), bits, parts, accumulate);
    stream_->synchronize();
    return dst.host();
  }

  // Values of a wide range, a block of zeros, one of tiny values and one with ties.
  template <typename T>
  std::vector<T> samples(int64_t blocks, int bits) {
    std::vector<T> values = random_normal<T>(blocks * kQuantizedBlock, 5, 3.0F);
    const int64_t largest = (1 << (bits - 1)) - 1;
    for (int64_t i = 0; i < kQuantizedBlock; ++i) {
      const auto at = [&](int64_t block) -> T& {
        return values[static_cast<size_t>(block * kQuantizedBlock + i)];
      };
      at(1) = from_fp32<T>(0.0F);
      at(2) = from_fp32<T>(1e-44F);
      // The scale is 2: odd numbers are ties.
      at(3) = from_fp32<T>(static_cast<float>(i == 0 ? 2 * largest : i % (2 * largest) - largest));
    }
    return values;
  }

  template <typename T>
  void check_quantize(int bits) {
    const std::vector<T> values = samples<T>(9, bits);
    const std::vector<Block> blocks = read_blocks(quantize(values, {.bits = bits}), bits);
    ASSERT_EQ(blocks.size(), 9U);
    const double most = (1 << (bits - 1)) - 1;
    for (size_t b = 0; b < blocks.size(); ++b) {
      const auto value = [&](size_t i) -> double { return to_fp32(values[b * 256 + i]); };
      double largest = 0;
      for (size_t i = 0; i < 256; ++i) largest = std::max(largest, std::abs(value(i)));
      const double scale = b == 2 ? 0.0 : largest / most;
      EXPECT_NEAR(blocks[b].scale, scale, scale * 0x1p-23) << b;
      for (size_t i = 0; i < 256; ++i) {
        const double decoded = blocks[b].codes[i] * static_cast<double>(blocks[b].scale);
        EXPECT_NEAR(decoded, value(i), scale * 0.50001 + 1e-43) << b << " " << i;
        EXPECT_LE(std::abs(blocks[b].codes[i]), most);
        if (b == 3) {
          EXPECT_EQ(blocks[b].codes[i], static_cast<int>(std::nearbyint(value(i) / 2))) << i;
        }
      }
    }
  }
};

TEST_P(QuantizeConformance, AnElementIsTheNearestMultipleOfItsBlocksScale) {
  for (const int bits : {4, 8}) {
    check_quantize<float>(bits);
    check_quantize<Bf16>(bits);
    check_quantize<Fp16>(bits);
  }
}

TEST_P(QuantizeConformance, PartsAreAddedInFp32AndRoundedOnce) {
  for (const int bits : {4, 8}) {
    for (const int parts : {1, 3}) {
      std::vector<uint8_t> bytes;
      std::vector<float> sum(512, 0.0F);
      for (int part = 0; part < parts; ++part) {
        const auto of_part =
            quantize(random_normal<float>(512, static_cast<unsigned>(part)), {.bits = bits});
        bytes.insert(bytes.end(), of_part.begin(), of_part.end());
        const std::vector<Block> blocks = read_blocks(of_part, bits);
        for (size_t i = 0; i < sum.size(); ++i) {
          const Block& block = blocks[i / 256];
          sum[i] += static_cast<float>(block.codes[i % 256]) * block.scale;
        }
      }
      const std::vector<Bf16> before = random_normal<Bf16>(512, 9);
      const std::vector<Bf16> replaced = dequantize(bytes, before, bits, parts, false);
      const std::vector<Bf16> added = dequantize(bytes, before, bits, parts, true);
      EXPECT_EQ(bits_of(dequantize(bytes, sum, bits, parts, false)), bits_of(sum));
      for (size_t i = 0; i < sum.size(); ++i) {
        EXPECT_EQ(bits_of(replaced[i]), bits_of(to_bf16(sum[i]))) << i;
        EXPECT_EQ(bits_of(added[i]), bits_of(to_bf16(to_fp32(before[i]) + sum[i]))) << i;
      }
    }
  }
}

TEST_P(QuantizeConformance, RunsAreTransposed) {
  constexpr int64_t kRows = 3;
  constexpr int64_t kColumns = 2;
  constexpr int64_t kRun = 512;
  const std::vector<float> values = random_normal<float>(kRows * kColumns * kRun, 4);
  std::vector<float> transposed(values.size());
  for (int64_t i = 0; i < kRows * kColumns * kRun; ++i) {
    const int64_t run = i / kRun;
    const int64_t to = run % kColumns * kRows + run / kColumns;
    transposed[static_cast<size_t>(to * kRun + i % kRun)] = values[static_cast<size_t>(i)];
  }
  EXPECT_EQ(quantize(values, {.bits = 4, .rows = kRows, .columns = kColumns}),
            quantize(transposed, {.bits = 4}));
}

TEST_P(QuantizeConformance, WhatIsLostIsAddedToTheNextValues) {
  constexpr float kBeta = 0.75F;
  const std::vector<float> values = random_normal<float>(512, 6);
  const std::vector<float> before = random_normal<float>(512, 7, 0.01F);
  std::vector<float> together(values.size());
  for (size_t i = 0; i < values.size(); ++i) together[i] = values[i] + before[i];
  const auto lost = array(before);
  const std::vector<uint8_t> bytes =
      quantize(values, {.bits = 4, .lost = lost.view(), .beta = kBeta});
  EXPECT_EQ(bytes, quantize(together, {.bits = 4}));
  const std::vector<Block> blocks = read_blocks(bytes, 4);
  const std::vector<float> after = lost.host();
  for (size_t i = 0; i < values.size(); ++i) {
    const double decoded =
        blocks[i / 256].codes[i % 256] * static_cast<double>(blocks[i / 256].scale);
    EXPECT_NEAR(after[i], kBeta * before[i] + (1 - kBeta) * (together[i] - decoded), 1e-6) << i;
  }
}

TEST_P(QuantizeConformance, ABlockThatIsNotFiniteBecomesNanAndForgetsWhatWasLost) {
  for (const float odd :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(),
        -std::numeric_limits<float>::infinity()}) {
    std::vector<float> values = random_normal<float>(512, 8);
    values[300] = odd;
    const auto lost = array(std::vector<float>(512, 0.001F));
    const std::vector<uint8_t> bytes =
        quantize(values, {.bits = 8, .lost = lost.view(), .beta = 0.5F});
    const std::vector<float> back = dequantize(bytes, values, 8, 1, false);
    const std::vector<float> after = lost.host();
    for (size_t i = 0; i < 512; ++i) {
      EXPECT_EQ(std::isnan(back[i]), i >= 256) << i;
      EXPECT_TRUE(std::isfinite(after[i]) && (i < 256 || after[i] == 0.0F)) << i;
    }
  }
}

TEST_P(QuantizeConformance, WrongArgumentsAreErrorsAtTheCall) {
  const auto src = array(std::vector<float>(512));
  const auto dst = array(std::vector<uint8_t>(520));
  const auto expect_error = [&](TensorView from, TensorView to, const Quantization& how) {
    EXPECT_THROW(device_->quantize(*stream_, from, to, how), InternalError);
  };
  expect_error(src.view(), dst.view(), {.bits = 4});
  expect_error(src.view(), dst.view(), {.bits = 16});
  expect_error(src.view().slice(0, 511), dst.view(), {});
  expect_error(src.view(), dst.view(), {.rows = 3});
  expect_error(src.view(), dst.view(), {.lost = src.view().slice(0, 256)});
  expect_error(dst.view(), dst.view(), {});
  EXPECT_THROW(device_->dequantize(*stream_, dst.view(), src.view(), 8, 2, false), InternalError);
  EXPECT_THROW(device_->dequantize(*stream_, dst.view(), dst.view(), 8, 1, false), InternalError);
}

INSTANTIATE_TEST_SUITE_P(Devices, QuantizeConformance, ::testing::ValuesIn(devices_under_test()),
                         name_of_device);

}  // namespace
}  // namespace zerorun::testing
