#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "zerorun/exact_sum.h"

namespace zerorun {

// A positive term of an ExactSum as the values that it adds to three consecutive digits. GPU
// kernels use it, too.
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

// Returns the largest double that is not above the sum in `words`, which are those of an ExactSum,
// plus the sum in `more` if there is one.
constexpr double exact_value(const int64_t* words, const int64_t* more = nullptr) {
  // Propagating carries makes the digits independent of the order of additions. The three digits
  // from the highest non-zero one then hold at least 65 significant bits. The digits are not stored
  // in an array, which GPU kernels would keep in memory.
  int64_t carry = 0;
  int64_t below[2] = {};  // the digits below the one at i
  int64_t leading[3] = {};
  int highest = 0;
  for (int i = 0; i < ExactSum::kDigits; ++i) {
    const int64_t sum = words[i] + (more == nullptr ? 0 : more[i]) + carry;
    const int64_t digit = sum & 0xffffffff;
    carry = sum >> ExactTerm::kDigitBits;
    if (digit != 0) {
      highest = i;
      leading[0] = digit;
      leading[1] = below[0];
      leading[2] = below[1];
    }
    below[1] = below[0];
    below[0] = digit;
  }
  double result = 0.0;
  for (int i = 0; i < 3 && highest >= i; ++i) {
    const int exponent = ExactSum::kLowestExponent + (highest - i) * ExactTerm::kDigitBits;
    const auto weight = std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
    result += static_cast<double>(leading[i]) * weight;
  }
  return result;
}

}  // namespace zerorun
