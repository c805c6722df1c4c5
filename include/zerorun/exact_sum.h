#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "zerorun/export.h"

namespace zerorun {

// Sum of non-negative doubles that does not depend on the order or grouping of the terms.
//
// The value is held as base-2^32 digits in int64 words, so adding a term and merging two sums are
// integer additions: associative and exact. Ranks merge theirs with an int64 all_reduce(sum).
// Up to 2^30 terms in total. The last word counts terms that were inf or nan.
struct ZR_API ExactSum {
  // Squares of fp32 values span 2^-298 .. 2^256; a sum of 2^30 of them stays below 2^320.
  static constexpr int kDigits = 21;
  static constexpr int kWords = kDigits + 1;
  static constexpr int kLowestExponent = -352;  // weight of digit 0 is 2^kLowestExponent

  std::array<int64_t, kWords> words{};

  // `term` is zero or in [2^-298, 2^265); see kLowestExponent.
  void add(double term);
  void merge(const ExactSum& other);
  // Nearest double below or at the exact sum (relative error below 2^-52).
  double value() const;
  int64_t non_finite_terms() const { return words[kDigits]; }
  static ExactSum from_words(std::span<const int64_t> words);
};

}  // namespace zerorun
