#pragma once

#include "tests/common.h"
#include "zerorun/tensor.h"

// Plain float64 versions of the kernels' formulas, and helpers to compare with them.
namespace zerorun::train::testing {

using Doubles = std::vector<double>;

inline std::vector<float> random_floats(int64_t numel, unsigned seed, float scale = 1.0F) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> values(static_cast<size_t>(numel));
  for (float& value : values) value = normal(engine);
  return values;
}

// c[rows, cols] = a[rows, inner] * b[inner, cols], given as functions of row and column.
using Entry = std::function<double(int64_t row, int64_t col)>;
inline Doubles product(int64_t rows, int64_t cols, int64_t inner, const Entry& a, const Entry& b) {
  Doubles c(static_cast<size_t>(rows * cols));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      double sum = 0.0;
      for (int64_t k = 0; k < inner; ++k) sum += a(i, k) * b(k, j);
      c[static_cast<size_t>(i * cols + j)] = sum;
    }
  }
  return c;
}

inline Entry entries(Doubles values, int64_t stride) {
  return [values = std::move(values), stride](int64_t row, int64_t col) {
    return values[static_cast<size_t>(row * stride + col)];
  };
}
inline Entry transposed(const Entry& a) {
  return [a](int64_t row, int64_t col) { return a(col, row); };
}

// Each row of `a`, as long as `b`, and `b`.
inline Doubles plus(Doubles a, const Doubles& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i % b.size()];
  return a;
}
inline Doubles times(double factor, Doubles a) {
  for (double& value : a) value *= factor;
  return a;
}

// Every element within `tolerance` of the largest expected magnitude.
template <typename Values>
void expect_close(const Values& actual, const Doubles& expected, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 0.0;
  for (double value : expected) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], tolerance * std::max(largest, 1e-30))
        << what << "[" << i << "]";
  }
}

// The derivative of `f` at values[i].
inline double derivative(const std::function<double(const Doubles&)>& f, Doubles values, size_t i) {
  constexpr double kStep = 1e-5;
  const double centre = values[i];
  values[i] = centre + kStep;
  const double above = f(values);
  values[i] = centre - kStep;
  return (above - f(values)) / (2 * kStep);
}

inline Doubles gradient(const std::function<double(const Doubles&)>& f, const Doubles& values) {
  Doubles result;
  for (size_t i = 0; i < values.size(); ++i) result.push_back(derivative(f, values, i));
  return result;
}

inline double weighted_sum(const Doubles& values, const Doubles& weights) {
  double sum = 0.0;
  for (size_t i = 0; i < values.size(); ++i) sum += values[i] * weights[i];
  return sum;
}

}  // namespace zerorun::train::testing
