#pragma once

#include "tests/train/model/kernels_under_test.h"

// Products with weights on every implementation of Kernels, against float64 formulas.
namespace zerorun::train::testing {

// Rows of values as a kernel with a stride wants them, and back.
inline std::vector<float> spread(const std::vector<float>& dense, int64_t rows, int64_t stride) {
  const auto width = std::ssize(dense) / rows;
  std::vector<float> stored(static_cast<size_t>(rows * stride), 1e4F);
  for (int64_t row = 0; row < rows; ++row) {
    std::copy_n(dense.begin() + row * width, width, stored.begin() + row * stride);
  }
  return stored;
}
inline Doubles dense(const Doubles& stored, int64_t rows, int64_t width) {
  const auto stride = std::ssize(stored) / rows;
  Doubles values;
  for (int64_t row = 0; row < rows; ++row) {
    const auto begin = stored.begin() + row * stride;
    values.insert(values.end(), begin, begin + width);
  }
  return values;
}

// The fourth shape needs several panels and tiles of 16-bit weights on the CPU; the last is that of
// the head, whose logits need not be dense.
TEST_P(KernelsConformance, ProductsAndTheirGradients) {
  const int64_t stride = kernels_->logits_stride(37);
  ASSERT_GE(stride, 37);
  for (const LinearShape& shape :
       {LinearShape{1, 1, 1}, {5, 7, 3}, {33, 64, 17}, {3, 1201, 603}, {6, 37, 16, stride}}) {
    const int64_t rows = shape.rows;
    const DeviceTensor x =
        activation(spread(random_floats(rows * shape.in, 1), rows, shape.stride()));
    const DeviceTensor weight = parameter(random_floats(shape.in * shape.out, 2));
    const DeviceTensor bias = parameter(random_floats(shape.out, 3));
    const DeviceTensor residual = activation(random_floats(rows * shape.out, 4));
    const Entry xs = entries(dense(x.values(), rows, shape.in), shape.in);
    const Entry ws = entries(weight.values(), shape.out);
    const Doubles plain = product(rows, shape.out, shape.in, xs, ws);
    const Doubles with_bias = plus(plain, bias.values());
    const Doubles full = plus(with_bias, residual.values());
    const DeviceTensor y = activation(rows * shape.out);
    const double tolerance = 2 * activation_rounding();  // where bias and product round apart
    kernels_->linear(shape, x, weight, {}, {}, y);
    expect_close(y.values(), plain, activation_rounding(), "product");
    kernels_->linear(shape, x, weight, bias, {}, y);
    expect_close(y.values(), with_bias, tolerance, "with bias");
    kernels_->linear(shape, x, weight, bias, residual, y);
    expect_close(y.values(), full, tolerance, "with bias and residual");
    kernels_->linear(shape, x, weight, bias, residual, residual);
    expect_close(residual.values(), full, tolerance, "in place");

    const DeviceTensor dy = activation(random_floats(rows * shape.out, 5));
    const Doubles dys = dy.values();
    const Doubles transposed_product =
        product(rows, shape.in, shape.out, entries(dys, shape.out), transposed(ws));
    const Doubles weight_gradient =
        product(shape.in, shape.out, rows, transposed(xs), entries(dys, shape.out));
    Doubles bias_gradient(static_cast<size_t>(shape.out));
    for (size_t i = 0; i < dys.size(); ++i) bias_gradient[i % bias_gradient.size()] += dys[i];
    const DeviceTensor dx = activation(rows * shape.stride());
    kernels_->linear_transposed(shape, dy, weight, dx);
    expect_close(dense(dx.values(), rows, shape.in), transposed_product, activation_rounding(),
                 "transposed");
    const DeviceTensor dweight = parameter(shape.in * shape.out);
    const DeviceTensor dbias = parameter(shape.out);
    for (const int sum : {1, 2}) {
      kernels_->linear_gradients(shape, x, dy, {dweight, sum > 1}, {dbias, sum > 1});
      expect_close(dweight.values(), times(sum, weight_gradient), gradient_rounding(), "dweight");
      expect_close(dbias.values(), times(sum, bias_gradient), gradient_rounding(), "dbias");
    }
    kernels_->linear_gradients(shape, x, dy, {dweight, false}, {});
    expect_close(dweight.values(), weight_gradient, gradient_rounding(), "dweight alone");
  }
}

inline double gelu_reference(double x) {
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

TEST_P(KernelsConformance, GeluFollowsTheProductAndItsDerivativeTheTransposed) {
  for (const LinearShape shape : {LinearShape{5, 7, 3}, LinearShape{33, 64, 24}}) {
    const int64_t numel = shape.rows * shape.out;
    const DeviceTensor x = activation(random_floats(shape.rows * shape.in, 1));
    const DeviceTensor weight = parameter(random_floats(shape.in * shape.out, 2, 0.3F));
    const DeviceTensor bias = parameter(random_floats(shape.out, 3));
    const Doubles before =
        plus(product(shape.rows, shape.out, shape.in, entries(x.values(), shape.in),
                     entries(weight.values(), shape.out)),
             bias.values());
    Doubles after = before;
    for (double& value : after) value = gelu_reference(value);
    const double tolerance = 2 * activation_rounding();  // where bias and product round apart
    const DeviceTensor hidden = activation(numel);
    const DeviceTensor active = activation(numel);
    kernels_->linear_gelu(shape, x, weight, bias, hidden, active);
    expect_close(hidden.values(), before, tolerance, "hidden");
    expect_close(active.values(), after, tolerance, "active");

    // Back through a product from `shape.out` to `shape.in` columns.
    const LinearShape second{shape.rows, shape.out, shape.in};
    const DeviceTensor dy = activation(random_floats(shape.rows * shape.in, 4));
    const DeviceTensor projection = parameter(random_floats(shape.in * shape.out, 5));
    const Doubles kept = hidden.values();
    Doubles expected = product(second.rows, second.in, second.out, entries(dy.values(), second.out),
                               transposed(entries(projection.values(), second.out)));
    for (size_t i = 0; i < expected.size(); ++i) {
      const double at = kept[i];
      expected[i] *= (gelu_reference(at + 1e-5) - gelu_reference(at - 1e-5)) / 2e-5;
      after[i] = gelu_reference(at);
    }
    const DeviceTensor dhidden = activation(numel);
    kernels_->linear_transposed_gelu(second, dy, projection, hidden, active, dhidden);
    expect_close(active.values(), after, activation_rounding(), "active, again");
    expect_close(dhidden.values(), expected, tolerance, "dhidden");
  }
}

// At stage 3 parameters move in memory from step to step, by cache lines
// (zero/partition/partition.cc). Closer than that cuBLAS may well take another algorithm.
TEST_P(KernelsConformance, ResultsDoNotDependOnWhereWeightsLie) {
  const LinearShape shape{48, 32, 64};
  const DeviceTensor x = activation(random_floats(shape.rows * shape.in, 1));
  const std::vector<float> weights = random_floats(shape.in * shape.out, 2);
  const DeviceTensor y = activation(shape.rows * shape.out);
  kernels_->linear(shape, x, parameter(weights), {}, {}, y);
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
