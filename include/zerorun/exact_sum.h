#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "zerorun/export.h"

namespace zerorun {

// An exact sum of non-negative doubles, which does not depend on the order or grouping of the
// terms.
//
// The value is stored as base-2^32 digits in int64 words. Adding a term and merging two sums are
// therefore integer additions, which are associative and exact. Ranks merge their sums with an
// int64 all_reduce. A sum may have up to 2^30 terms. The last word counts terms that were inf or
// nan.
struct ZR_API ExactSum {
  // Squares of fp32 values span 2^-298 .. 2^256; a sum of 2^30 of them stays below 2^320.
  static constexpr int kDigits = 21;
  static constexpr int kWords = kDigits + 1;
  static constexpr int kLowestExponent = -352;  // weight of digit 0 is 2^kLowestExponent

  std::array<int64_t, kWords> words{};

  // Adds `term`, which must be zero or in [2^-298, 2^265); see kLowestExponent.
  void add(double term);
  void merge(const ExactSum& other);
  // Returns the largest double that is not above the exact sum (relative error below 2^-52).
  double value() const;
  int64_t non_finite_terms() const { return words[kDigits]; }
  static ExactSum from_words(std::span<const int64_t> words);
};

}  // namespace zerorun
