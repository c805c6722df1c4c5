#include "zerorun/exact_sum.h"

#include "tests/common.h"

namespace zerorun {
namespace {

std::vector<double> terms_of_many_magnitudes(int count) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> mantissa(1.0, 2.0);
  std::uniform_int_distribution<int> exponent(-290, 250);
  std::vector<double> terms;
  for (int i = 0; i < count; ++i) terms.push_back(std::ldexp(mantissa(random), exponent(random)));
  return terms;
}

TEST(ExactSum, DoesNotDependOnOrderOrGrouping) {
  std::vector<double> terms = terms_of_many_magnitudes(1000);
  ExactSum forward;
  for (double term : terms) forward.add(term);
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(terms.begin(), terms.end(), random);
    ExactSum left;
    ExactSum right;
    for (size_t i = 0; i < terms.size(); ++i) (i % 3 == 0 ? left : right).add(terms[i]);
    left.merge(right);
    EXPECT_EQ(forward.words, left.words);
    EXPECT_EQ(forward.value(), left.value());
  }
}

TEST(ExactSum, IsExactWhereDoubleLosesTheSmallTerm) {
  ExactSum sum;
  sum.add(0x1p100);
  for (int i = 0; i < 1 << 10; ++i) sum.add(0x1p40);
  EXPECT_EQ(sum.value(), 0x1p100 + 0x1p50);
}

TEST(ExactSum, CoversSquaresOfEveryFloat) {
  ExactSum sum;
  const double smallest = std::numeric_limits<float>::denorm_min();
  sum.add(smallest * smallest);
  EXPECT_EQ(sum.value(), smallest * smallest);
  const double largest = std::numeric_limits<float>::max();
  ExactSum large;
  for (int i = 0; i < 1000; ++i) large.add(256 * largest * largest);
  EXPECT_NEAR(large.value() / (256000 * largest * largest), 1.0, 1e-15);
}

TEST(ExactSum, CountsNonFiniteTerms) {
  ExactSum sum;
  sum.add(std::numeric_limits<double>::infinity());
  sum.add(std::numeric_limits<double>::quiet_NaN());
  sum.add(1.0);
  EXPECT_EQ(sum.non_finite_terms(), 2);
  EXPECT_EQ(sum.value(), 1.0);
}

}  // namespace
}  // namespace zerorun
