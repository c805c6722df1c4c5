#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "zerorun/exact_sum.h"

namespace zerorun {

// A positive term of an ExactSum: what it adds to three neighbouring digits. Kernels use it too.
struct ExactTerm {
  static constexpr int kDigitBits = 32;

  int digit = 0;  // the lowest of the three
  std::array<uint32_t, 3> parts{};

  static constexpr bool is_finite(double term) {
    return (std::bit_cast<uint64_t>(term) >> 52 & 0x7ff) != 0x7ff;
  }

  // `term` is finite and in the range of ExactSum::add.
  static constexpr ExactTerm of(double term) {
    const auto bits = std::bit_cast<uint64_t>(term);
    const auto exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1075;  // of the lowest bit
    const uint64_t mantissa = (bits & 0xfffffffffffffU) | uint64_t{1} << 52;
    const int position = exponent - ExactSum::kLowestExponent;
    const int shift = position % kDigitBits;
    const uint64_t low = mantissa << shift;
    const uint64_t high = shift == 0 ? 0 : mantissa >> (64 - shift);
    return {position / kDigitBits,
            {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
             static_cast<uint32_t>(high)}};
  }
};

}  // namespace zerorun
