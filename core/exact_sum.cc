#include "zerorun/exact_sum.h"

#include <cstddef>

#include "core/exact_term.h"

namespace zerorun {

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

double ExactSum::value() const { return exact_value(words.data()); }

ExactSum ExactSum::from_words(std::span<const int64_t> words) {
  ExactSum sum;
  for (size_t i = 0; i < sum.words.size(); ++i) sum.words[i] = words[i];
  return sum;
}

}  // namespace zerorun
