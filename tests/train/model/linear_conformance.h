#pragma once

#include "tests/train/model/kernels_under_test.h"

// Products with weights on every implementation of Kernels, against float64 formulas.
namespace zerorun::train::testing {

// The last shapes need several panels and tiles of 16-bit weights on the CPU; the strided one is
// that of the head, whose logits need not be dense.
class LinearConformance : public KernelsSuite {
 protected:
  std::vector<LinearShape> shapes() const {
    return {{1, 1, 1}, {5, 7, 3}, {33, 64, 17}, {3, 1201, 603}};
  }
};

TEST_P(LinearConformance, AddsBiasAndResidualToTheProduct) {
  for (const LinearShape& shape : shapes()) {
    const DeviceTensor x = activation(random_floats(shape.rows * shape.in, 1));
    const DeviceTensor weight = parameter(random_floats(shape.in * shape.out, 2));
    const DeviceTensor bias = parameter(random_floats(shape.out, 3));
    const DeviceTensor residual = activation(random_floats(shape.rows * shape.out, 4));
    const Doubles xs = x.values();
    const Doubles ws = weight.values();
    const Doubles bs = bias.values();
    const Doubles residuals = residual.values();
    const Doubles plain =
        product(shape.rows, shape.out, shape.in, entries(xs, shape.in), entries(ws, shape.out));
    const Doubles with_bias = plus(plain, bs);
    const Doubles full = plus(with_bias, residuals);

    const DeviceTensor y = activation(shape.rows * shape.out);
    const double tolerance = 2 * activation_rounding();  // where bias and product round apart
    kernels_->linear(shape, x, weight, {}, {}, y);
    expect_close(y.values(), plain, activation_rounding(), "product");
    kernels_->linear(shape, x, weight, bias, {}, y);
    expect_close(y.values(), with_bias, tolerance, "with bias");
    kernels_->linear(shape, x, weight, bias, residual, y);
    expect_close(y.values(), full, tolerance, "with bias and residual");
    kernels_->linear(shape, x, weight, bias, residual, residual);
    expect_close(residual.values(), full, tolerance, "in place");
  }
}

TEST_P(LinearConformance, TransposedProduct) {
  for (const LinearShape& shape : shapes()) {
    const DeviceTensor y = activation(random_floats(shape.rows * shape.out, 1));
    const DeviceTensor weight = parameter(random_floats(shape.in * shape.out, 2));
    const Doubles ys = y.values();
    const Doubles ws = weight.values();
    const DeviceTensor x = activation(shape.rows * shape.in);
    kernels_->linear_transposed(shape, y, weight, x);
    expect_close(
        x.values(),
        product(shape.rows, shape.in, shape.out, entries(ys, shape.out), transposed(ws, shape.out)),
        activation_rounding(), "x");
  }
}

TEST_P(LinearConformance, GradientsOverwriteOrAccumulate) {
  for (const LinearShape& shape : shapes()) {
    const DeviceTensor x = activation(random_floats(shape.rows * shape.in, 1));
    const DeviceTensor dy = activation(random_floats(shape.rows * shape.out, 2));
    const Doubles xs = x.values();
    const Doubles dys = dy.values();
    const Doubles weight_gradient =
        product(shape.in, shape.out, shape.rows, transposed(xs, shape.in), entries(dys, shape.out));
    Doubles bias_gradient(static_cast<size_t>(shape.out));
    for (size_t i = 0; i < dys.size(); ++i) bias_gradient[i % bias_gradient.size()] += dys[i];

    const DeviceTensor weight = parameter(shape.in * shape.out);
    const DeviceTensor bias = parameter(shape.out);
    for (const int sum : {1, 2}) {
      kernels_->linear_gradients(shape, x, dy, {weight, sum > 1}, {bias, sum > 1});
      expect_close(weight.values(), times(sum, weight_gradient), gradient_rounding(), "weight");
      expect_close(bias.values(), times(sum, bias_gradient), gradient_rounding(), "bias");
    }
    kernels_->linear_gradients(shape, x, dy, {weight, false}, {});
    expect_close(weight.values(), weight_gradient, gradient_rounding(), "weight alone");
  }
}

TEST_P(LinearConformance, LogitsMayLieApart) {
  constexpr int64_t kVocabulary = 37;
  constexpr int64_t kWidth = 16;
  constexpr int64_t kRows = 6;
  const int64_t stride = kernels_->logits_stride(kVocabulary);
  ASSERT_GE(stride, kVocabulary);
  const LinearShape shape{kRows, kVocabulary, kWidth, stride};
  const DeviceTensor normal = activation(random_floats(kRows * kWidth, 1));
  const DeviceTensor wte = parameter(random_floats(kVocabulary * kWidth, 2));
  const DeviceTensor logits = activation(kRows * stride);
  const Doubles ns = normal.values();
  const Doubles ws = wte.values();
  kernels_->linear_transposed(shape, normal, wte, logits);
  const Doubles expected =
      product(kRows, kVocabulary, kWidth, entries(ns, kWidth), transposed(ws, kWidth));
  const Doubles stored = logits.values();
  Doubles dense;
  for (int64_t row = 0; row < kRows; ++row) {
    const auto begin = stored.begin() + row * stride;
    dense.insert(dense.end(), begin, begin + kVocabulary);
  }
  expect_close(dense, expected, activation_rounding(), "logits");

  const DeviceTensor dnormal = activation(kRows * kWidth);
  kernels_->linear(shape, logits, wte, {}, {}, dnormal);
  expect_close(
      dnormal.values(),
      product(kRows, kWidth, kVocabulary, entries(dense, kVocabulary), entries(ws, kWidth)),
      activation_rounding(), "dnormal");
  const DeviceTensor dwte = parameter(kVocabulary * kWidth);
  kernels_->linear_gradients(shape, logits, normal, {dwte, false}, {});
  expect_close(
      dwte.values(),
      product(kVocabulary, kWidth, kRows, transposed(dense, kVocabulary), entries(ns, kWidth)),
      gradient_rounding(), "dwte");
}

inline double gelu_reference(double x) {
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

TEST_P(LinearConformance, GeluFollowsTheProductAndItsDerivativeTheTransposed) {
  for (const LinearShape shape : {LinearShape{5, 7, 3}, LinearShape{33, 64, 24}}) {
    const DeviceTensor x = activation(random_floats(shape.rows * shape.in, 1));
    const DeviceTensor weight = parameter(random_floats(shape.in * shape.out, 2, 0.3F));
    const DeviceTensor bias = parameter(random_floats(shape.out, 3));
    const Doubles xs = x.values();
    const Doubles ws = weight.values();
    const Doubles bs = bias.values();
    const Doubles before = plus(
        product(shape.rows, shape.out, shape.in, entries(xs, shape.in), entries(ws, shape.out)),
        bs);
    Doubles after = before;
    for (double& value : after) value = gelu_reference(value);
    const double tolerance = 2 * activation_rounding();  // where bias and product round apart
    const DeviceTensor hidden = activation(std::ssize(before));
    const DeviceTensor active = activation(std::ssize(before));
    kernels_->linear_gelu(shape, x, weight, bias, hidden, active);
    expect_close(hidden.values(), before, tolerance, "hidden");
    expect_close(active.values(), after, tolerance, "active");

    // Back through a product from `shape.out` to `shape.in` columns.
    const LinearShape second{shape.rows, shape.out, shape.in};
    const DeviceTensor dy = activation(random_floats(shape.rows * shape.in, 4));
    const DeviceTensor projection = parameter(random_floats(shape.in * shape.out, 5));
    const Doubles dys = dy.values();
    const Doubles ps = projection.values();
    const Doubles kept = hidden.values();
    Doubles expected = product(second.rows, second.in, second.out, entries(dys, second.out),
                               transposed(ps, second.out));
    for (size_t i = 0; i < expected.size(); ++i) {
      const double at = kept[i];
      expected[i] *= (gelu_reference(at + 1e-5) - gelu_reference(at - 1e-5)) / 2e-5;
      after[i] = gelu_reference(at);
    }
    const DeviceTensor again = activation(std::ssize(before));
    const DeviceTensor dhidden = activation(std::ssize(before));
    kernels_->linear_transposed_gelu(second, dy, projection, hidden, again, dhidden);
    expect_close(again.values(), after, activation_rounding(), "active, again");
    expect_close(dhidden.values(), expected, tolerance, "dhidden");
  }
}

// At stage 3 parameters move in memory from step to step, by cache lines
// (zero/partition/partition.cc). Closer than that cuBLAS may well take another algorithm.
TEST_P(LinearConformance, ResultsDoNotDependOnWhereWeightsLie) {
  const LinearShape shape{48, 32, 64};
  const DeviceTensor x = activation(random_floats(shape.rows * shape.in, 1));
  const std::vector<float> weights = random_floats(shape.in * shape.out, 2);
  const DeviceTensor y = activation(shape.rows * shape.out);
  const DeviceTensor weight = parameter(weights);
  kernels_->linear(shape, x, weight, {}, {}, y);
  const Doubles expected = y.values();
  for (const int64_t shift : {32, 64, 96, 256}) {
    std::vector<float> moved(static_cast<size_t>(shift));
    moved.insert(moved.end(), weights.begin(), weights.end());
    const DeviceTensor stored = parameter(moved);
    kernels_->linear(shape, x, stored.view().slice(shift, std::ssize(weights)), {}, {}, y);
    EXPECT_TRUE(y.values() == expected) << shift;
  }
}

}  // namespace zerorun::train::testing
