#include "zerorun/exact_sum.h"

#include <cmath>
#include <cstddef>

namespace zerorun {

namespace {
constexpr int kDigitBits = 32;
constexpr uint64_t kDigitMask = 0xffffffffU;
}  // namespace

void ExactSum::add(double term) {
  if (!std::isfinite(term)) {
    ++words[kDigits];
    return;
  }
  if (term == 0.0) return;
  int exponent = 0;
  const double fraction = std::frexp(term, &exponent);  // term = fraction * 2^exponent, in [0.5, 1)
  const auto mantissa = static_cast<uint64_t>(std::ldexp(fraction, 53));
  const int position = exponent - 53 - kLowestExponent;  // of the mantissa's lowest bit
  const int digit = position / kDigitBits;
  const auto wide = static_cast<unsigned __int128>(mantissa) << (position % kDigitBits);
  words[static_cast<size_t>(digit)] +=
      static_cast<int64_t>(static_cast<uint64_t>(wide) & kDigitMask);
  words[static_cast<size_t>(digit) + 1] +=
      static_cast<int64_t>(static_cast<uint64_t>(wide >> 32) & kDigitMask);
  words[static_cast<size_t>(digit) + 2] +=
      static_cast<int64_t>(static_cast<uint64_t>(wide >> 64) & kDigitMask);
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
