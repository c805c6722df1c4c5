#pragma once

#include <bit>
#include <cstdint>

#include "core/philox.h"
#include "zerorun/dtype.h"

namespace zerorun {

// Stochastic rounding to 16 bits: a value becomes one of its two neighbours, with probabilities
// that make the expected value exact. The random bits depend only on the members and on the index
// of the element.
struct StochasticRounding {
  uint64_t seed = 0x7a65726f72756eULL;  // fixed, so that results are reproducible
  int64_t step = 0;
  int64_t parameter = 0;
  uint32_t tensor = 0;  // 0: master, 1 and 2: states

  // Elements that share 16 Philox blocks: element i takes 16 bits of block i % 16.
  static constexpr int64_t kGroup = 128;
  static constexpr int64_t kColumns = 16;

  constexpr Philox::Key key() const {
    return {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  }
  // The counter of column 0 of the group; word 0 counts columns.
  constexpr Philox::Block counter(int64_t group) const {
    const auto first = static_cast<uint64_t>(group * kColumns);
    return {static_cast<uint32_t>(first), static_cast<uint32_t>(first >> 32) << 2 | tensor,
            static_cast<uint32_t>(parameter), static_cast<uint32_t>(step)};
  }
  // Returns 16 random bits for an element.
  constexpr uint32_t bits(int64_t element) const {
    const int64_t row = element % kGroup / kColumns;
    Philox::Block block = counter(element / kGroup);
    block[0] += static_cast<uint32_t>(element % kColumns);
    const uint32_t word = Philox::block(block, key())[static_cast<size_t>(row / 2)];
    return row % 2 == 0 ? word & 0xffffU : word >> 16;
  }
};

// Rounds `value` with 16 uniform random bits. Values that are representable in 16 bits, including
// infinities, do not change.
constexpr Bf16 round_to_bf16(float value, uint32_t random) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7f800000U) == 0x7f800000U) return to_bf16(value);
  return {static_cast<uint16_t>((bits + random) >> 16)};
}

constexpr Fp16 round_to_fp16(float value, uint32_t random) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude >= 0x47800000U) return to_fp16(value);  // 2^16: infinity, or nan
  const uint32_t drawn = random >> 3;  // random value of the 13 bits that are dropped
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000U);
  if (magnitude >= 0x38800000U) {
    return {static_cast<uint16_t>(sign | ((magnitude + drawn - 0x38000000U) >> 13))};
  }
  // Subnormal: a multiple of 2^-24.
  const float units = std::bit_cast<float>(magnitude) * 0x1p24F;
  return {static_cast<uint16_t>(
      sign | static_cast<uint16_t>(units + static_cast<float>(drawn) * 0x1p-13F))};
}

}  // namespace zerorun
