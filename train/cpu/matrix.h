#pragma once

#include <cstdint>

#include "zerorun/engine.h"
#include "zerorun/tensor.h"

// Operations on fp32 matrices in host memory: products by oneDNN, passes over rows by Highway.
namespace zerorun::train {

struct GemmSize {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t inner = 0;
};

// A row-major matrix whose rows are `stride` elements apart.
struct GemmInput {
  const float* data = nullptr;
  int64_t stride = 0;
  bool transposed = false;
};
struct GemmOutput {
  float* data = nullptr;
  int64_t stride = 0;
};

// out[rows, cols] = beta * out + alpha * a[rows, inner] * b[inner, cols]. Within a parallel region
// it runs on the calling thread only.
void gemm(const GemmSize& size, GemmInput a, GemmInput b, GemmOutput out, float alpha = 1.0F,
          float beta = 0.0F);

// A row-major matrix of any dtype within a larger one. It begins at the first element of `corner`;
// rows are `stride` elements apart.
struct StoredPanel {
  TensorView corner;
  int64_t stride = 0;
  StoredPanel at(int64_t row, int64_t col) const {
    const int64_t begin = row * stride + col;
    return {corner.slice(begin, corner.numel - begin), stride};
  }
};

// to[rows, cols] = from, converted to fp32 (exact).
void widen(const StoredPanel& from, int64_t rows, int64_t cols, float* to);
// to = from, or to += from, rounded to nearest, ties to even.
void round_into(const float* from, int64_t rows, int64_t cols, const StoredPanel& to,
                bool accumulate);
// to = from, or to += from, in the dtype of the view.
void write_gradient(const float* from, const GradientView& to);

// y[rows, width] = residual (or 0) + bias (or 0); `residual` may be y.
void start_rows(int64_t rows, int64_t width, TensorView bias, const float* residual, float* y);
// Sums of each column of x[rows, width].
void column_sums(int64_t rows, int64_t width, const float* x, float* sums);

// y = gelu(x), the tanh approximation.
void gelu(int64_t numel, const float* x, float* y);
// y = gelu(x); dy_to_dx *= gelu'(x).
void gelu_backward(int64_t numel, const float* x, float* y, float* dy_to_dx);

// Softmax of a row of scores:
struct SoftmaxSums {
  float sum = 0;      // sum of the values written
  float log_sum = 0;  // log of the sum of exp(score)
};
// row = exp(row - maximum). Dividing the row by the returned sum gives the softmax.
SoftmaxSums exponentiate(float* row, int64_t numel);
// row = exp(row - log_sum)
void exponentiate_from(float* row, int64_t numel, float log_sum);
// ds = p * (ds - mean)
void softmax_backward(const float* p, int64_t numel, float mean, float* ds);

void scale(float* row, int64_t numel, float factor);
float dot(const float* a, const float* b, int64_t numel);

}  // namespace zerorun::train
