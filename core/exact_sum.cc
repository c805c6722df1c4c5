#include "zerorun/exact_sum.h"

#include <cmath>
#include <cstddef>

#include "core/exact_term.h"

namespace zerorun {

namespace {
constexpr int kDigitBits = ExactTerm::kDigitBits;
constexpr uint64_t kDigitMask = 0xffffffffU;
}  // namespace

void ExactSum::add(double term) {
  if (!ExactTerm::is_finite(term)) {
    ++words[kDigits];
    return;
  }
  if (term == 0.0) return;
  const ExactTerm split = ExactTerm::of(term);
  for (size_t i = 0; i < split.parts.size(); ++i) {
    words[static_cast<size_t>(split.digit) + i] += int64_t{split.parts[i]};
  }
}

void ExactSum::merge(const ExactSum& other) {
  for (size_t i = 0; i < words.size(); ++i) words[i] += other.words[i];
}

double ExactSum::value() const {
  // Carry, so that digits are unique whatever the order of additions; then three digits from the
  // highest non-zero one hold at least 65 significant bits.
  std::array<int64_t, kDigits> digits{};
  int64_t carry = 0;
  int highest = 0;
  for (int i = 0; i < kDigits; ++i) {
    const int64_t sum = words[static_cast<size_t>(i)] + carry;
    digits[static_cast<size_t>(i)] = sum & static_cast<int64_t>(kDigitMask);
    carry = sum >> kDigitBits;
    if (digits[static_cast<size_t>(i)] != 0) highest = i;
  }
  double result = 0.0;
  for (int i = highest; i >= 0 && i > highest - 3; --i) {
    result += std::ldexp(static_cast<double>(digits[static_cast<size_t>(i)]),
                         kLowestExponent + i * kDigitBits);
  }
  return result;
}

ExactSum ExactSum::from_words(std::span<const int64_t> words) {
  ExactSum sum;
  for (size_t i = 0; i < sum.words.size(); ++i) sum.words[i] = words[i];
  return sum;
}

}  // namespace zerorun
