#pragma once

#include <cstdint>

#include "zerorun/dtype.h"
#include "zerorun/engine.h"
#include "zerorun/tensor.h"

// Element-wise passes over matrices.
namespace zerorun::train {

// A row-major matrix within a larger one. It begins at the first element of `corner`; rows are
// `stride` elements apart.
struct StoredPanel {
  TensorView corner;
  int64_t stride = 0;
  StoredPanel from_row(int64_t row) const {
    return {corner.slice(row * stride, corner.numel - row * stride), stride};
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

}  // namespace zerorun::train
