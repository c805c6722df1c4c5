// Floats in few bits, against the definition in float64.

#include "tests/device/conformance.h"

namespace zerorun::testing {
namespace {

// A block as the format's page says it: scales, then integers.
struct Block {
  std::vector<float> scales;
  std::vector<int> codes;

  float scale_of(size_t i) const { return scales[i * scales.size() / 256]; }
  float decoded(size_t i) const { return static_cast<float>(codes[i]) * scale_of(i); }
};

std::vector<Block> read_blocks(const std::vector<uint8_t>& bytes, int bits) {
  const size_t size = bits == 4 ? 8 * 2 + 128 : 4 + 256;
  std::vector<Block> blocks;
  for (size_t at = 0; at < bytes.size(); at += size) {
    Block& block = blocks.emplace_back();
    size_t begin = at;
    if (bits == 4) {
      for (; begin < at + 16; begin += 2) {
        const uint32_t upper = bytes[begin] | (uint32_t{bytes[begin + 1]} << 8U);
        block.scales.push_back(std::bit_cast<float>(upper << 16U));
      }
    } else {
      block.scales.resize(1);
      std::memcpy(block.scales.data(), &bytes[at], sizeof(float));
      begin += sizeof(float);
    }
    for (size_t i = begin; i < at + size; ++i) {
      const int byte = bytes[i];
      for (int part = 0; part < 8 / bits; ++part) {
        const int code = (byte >> (part * bits)) & ((1 << bits) - 1);
        block.codes.push_back(code >= 1 << (bits - 1) ? code - (1 << bits) : code);
      }
    }
  }
  return blocks;
}

struct QuantizeConformance : DeviceConformance {
  template <typename T>
  std::vector<uint8_t> quantize(const std::vector<T>& values, const Quantization& how) {
    const auto src = array(values, how.bits == 8 ? 0 : 3);
    const auto nbytes = quantized_nbytes(static_cast<int64_t>(values.size()), how.bits);
    const auto dst = array(std::vector<uint8_t>(static_cast<size_t>(nbytes)), 4);
    device_->quantize(*stream_, src, dst, how);
    return dst.host();
  }
  template <typename T>
  std::vector<T> dequantize(const std::vector<uint8_t>& bytes, std::vector<T> into,
                            const Dequantization& how) {
    const auto src = array(bytes, 4);
    const auto dst = array(into, how.accumulate ? 0 : 3);
    device_->dequantize(*stream_, src, dst, how);
    return dst.host();
  }

  // Values of a wide range, a block of zeros, one of tiny values and one with ties.
  template <typename T>
  std::vector<T> samples(int64_t blocks, int bits) {
    std::vector<T> values = random_normal<T>(blocks * kQuantizedBlock, 5, 3.0F);
    for (int64_t i = 0; i < kQuantizedBlock; ++i) {
      const auto at = [&](int64_t block) -> T& {
        return values[static_cast<size_t>(block * kQuantizedBlock + i)];
      };
      at(1) = from_fp32<T>(0.0F);
      at(2) = from_fp32<T>(1e-44F);
      // The scale is 2, or of every second group of 32 in 4 bits -2: odd numbers are ties.
      const int64_t end = bits == 8 ? 2 * 127 : i / 32 % 2 == 0 ? -16 : 16;
      at(3) = from_fp32<T>(static_cast<float>(i % (bits == 8 ? 256 : 32) == 0 ? end : i % 15 - 7));
    }
    return values;
  }

  // The scale that the definition gives to the neighbours of an element, in float64.
  static double scale_by_definition(const std::vector<double>& values, size_t i, int bits) {
    const size_t group = bits == 4 ? 32 : 256;
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(i / group * group);
    const auto [least, most] = std::minmax_element(begin, begin + static_cast<int>(group));
    if (std::max(-*least, *most) < 1e-40) return 0;
    if (bits == 8) return std::max(-*least, *most) / 127;
    return (-*least >= *most ? *least : *most) / -8;
  }

  template <typename T>
  void check_quantize(int bits) {
    const std::vector<T> source = samples<T>(9, bits);
    const std::vector<Block> blocks = read_blocks(quantize(source, {.bits = bits}), bits);
    ASSERT_EQ(blocks.size(), 9U);
    std::vector<double> values;
    for (const T& value : source) values.push_back(to_fp32(value));
    for (size_t at = 0; at < values.size(); ++at) {
      const Block& block = blocks[at / 256];
      const size_t i = at % 256;
      const double expected = scale_by_definition(values, at, bits);
      const double scale = block.scale_of(i);
      EXPECT_NEAR(scale, expected, std::abs(expected) * (bits == 4 ? 0x1p-8 : 0x1p-23)) << at;
      const double ends[] = {bits == 4 ? -8 * scale : -127 * scale,
                             bits == 4 ? 7 * scale : 127 * scale};
      const double within =
          std::clamp(values[at], std::min(ends[0], ends[1]), std::max(ends[0], ends[1]));
      EXPECT_NEAR(block.decoded(i), within, std::abs(scale) * 0.50001 + 1e-43) << at;
      if (at / 256 == 3 && i % 32 != 0) {
        EXPECT_EQ(block.codes[i], static_cast<int>(std::nearbyint(values[at] / scale))) << i;
      }
    }
  }
};

TEST_P(QuantizeConformance, AnElementIsTheNearestMultipleOfItsGroupsScale) {
  for (const int bits : {4, 8}) {
    for_types<float, Bf16, Fp16>([&](auto type) { check_quantize<decltype(type)>(bits); });
  }
}

TEST_P(QuantizeConformance, PartsAreAddedInFp32AndRoundedOnce) {
  for (const auto& [bits, parts] : each(std::array{4, 8}, std::array{1, 3})) {
    std::vector<uint8_t> bytes;
    std::vector<float> sum(512, 0.0F);
    for (int part = 0; part < parts; ++part) {
      const auto of_part =
          quantize(random_normal<float>(512, static_cast<unsigned>(part)), {.bits = bits});
      bytes.insert(bytes.end(), of_part.begin(), of_part.end());
      const std::vector<Block> blocks = read_blocks(of_part, bits);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += blocks[i / 256].decoded(i % 256);
    }
    const std::vector<Bf16> before = random_normal<Bf16>(512, 9);
    const Dequantization how{.bits = bits, .parts = parts};
    const Dequantization adding{.bits = bits, .parts = parts, .accumulate = true};
    const std::vector<Bf16> replaced = dequantize(bytes, before, how);
    const std::vector<Bf16> added = dequantize(bytes, before, adding);
    EXPECT_EQ(bits_of(dequantize(bytes, sum, how)), bits_of(sum));
    for (size_t i = 0; i < sum.size(); ++i) {
      EXPECT_EQ(bits_of(replaced[i]), bits_of(to_bf16(sum[i]))) << i;
      EXPECT_EQ(bits_of(added[i]), bits_of(to_bf16(to_fp32(before[i]) + sum[i]))) << i;
    }
  }
}

TEST_P(QuantizeConformance, APartThatIsThereAsItWasIsAddedInItsPlace) {
  for (const int bits : {4, 8}) {
    const std::vector<float> values = random_normal<float>(3 * 512, 3);
    std::vector<uint8_t> bytes = quantize(values, {.bits = bits});
    const std::vector<Block> blocks = read_blocks(bytes, bits);
    const std::vector<Bf16> own = random_normal<Bf16>(512, 4);
    const auto exact = array(own);
    for (int part = 0; part < 3; ++part) {
      std::vector<float> sum(512, 0.0F);
      for (size_t at = 0; at < 3 * 512; ++at) {
        const size_t i = at % 512;
        const bool is_exact = at / 512 == static_cast<size_t>(part);
        sum[i] += is_exact ? to_fp32(own[i]) : blocks[at / 256].decoded(at % 256);
      }
      std::vector<uint8_t> sent = bytes;  // of that part, anything
      std::fill_n(sent.begin() + static_cast<std::ptrdiff_t>(bytes.size() / 3) * part,
                  bytes.size() / 3, uint8_t{0xff});
      EXPECT_EQ(bits_of(dequantize(sent, sum,
                                   {.bits = bits, .parts = 3, .exact = exact, .exact_part = part})),
                bits_of(sum))
          << part;
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
  const std::vector<uint8_t> bytes = quantize(values, {.bits = 4, .lost = lost, .beta = kBeta});
  EXPECT_EQ(bytes, quantize(together, {.bits = 4}));
  const std::vector<Block> blocks = read_blocks(bytes, 4);
  const std::vector<float> after = lost.host();
  for (size_t i = 0; i < values.size(); ++i) {
    const double now = together[i] - static_cast<double>(blocks[i / 256].decoded(i % 256));
    EXPECT_NEAR(after[i], kBeta * before[i] + (1 - kBeta) * now, 1e-6) << i;
  }
}

TEST_P(QuantizeConformance, AGroupThatIsNotFiniteBecomesNanAndForgetsWhatWasLost) {
  for (const auto& [odd, bits] : each(std::array{kInfinity, kNan, -kInfinity}, std::array{4, 8})) {
    std::vector<float> values = random_normal<float>(512, 8);
    values[300] = odd;
    const auto lost = array(std::vector<float>(512, 0.001F));
    const std::vector<uint8_t> bytes = quantize(values, {.bits = bits, .lost = lost, .beta = 0.5F});
    const std::vector<float> back = dequantize(bytes, values, {.bits = bits});
    const std::vector<float> after = lost.host();
    const size_t group = bits == 4 ? 32 : 256;
    for (size_t i = 0; i < 512; ++i) {
      const bool odd_group = i / group == 300 / group;
      EXPECT_EQ(std::isnan(back[i]), odd_group) << i;
      EXPECT_TRUE(std::isfinite(after[i]) && (!odd_group || after[i] == 0.0F)) << i;
    }
  }
}

TEST_P(QuantizeConformance, WrongArgumentsAreErrorsAtTheCall) {
  const auto src = array(std::vector<float>(512));
  const auto dst = array(std::vector<uint8_t>(520));
  const auto expect_error = [&](TensorView from, TensorView to, const Quantization& how) {
    EXPECT_THROW(device_->quantize(*stream_, from, to, how), InternalError);
  };
  expect_error(src, dst, {.bits = 4});
  expect_error(src, dst, {.bits = 16});
  expect_error(src.view().slice(0, 511), dst, {});
  expect_error(src, dst, {.rows = 3});
  expect_error(src, dst, {.lost = src.view().slice(0, 256)});
  expect_error(dst, dst, {});
  EXPECT_THROW(device_->dequantize(*stream_, dst, src, {.parts = 2}), InternalError);
  EXPECT_THROW(device_->dequantize(*stream_, dst, dst, {}), InternalError);
  const Dequantization other{.exact = src, .exact_part = 1};
  EXPECT_THROW(device_->dequantize(*stream_, dst, src, other), InternalError);
}

ZR_ON_ALL_DEVICES(QuantizeConformance);

}  // namespace
}  // namespace zerorun::testing
