#pragma once

#include <cstdint>

#include "zerorun/dtype.h"
#include "zerorun/engine.h"
#include "zerorun/tensor.h"

// Passes over matrices that are neither a product nor a normalisation.
namespace zerorun::train {

// A row-major matrix inside a larger one, from the first element of `corner` on: rows lie `stride`
// elements apart.
struct StoredPanel {
  TensorView corner;
  int64_t stride = 0;
  StoredPanel from_row(int64_t row) const {
    return {corner.slice(row * stride, corner.numel - row * stride), stride};
  }
};

// to[rows, cols] = from, exactly.
void widen(const StoredPanel& from, int64_t rows, int64_t cols, float* to);
// to = from, or to += from, rounded to nearest even.
void round_into(const float* from, int64_t rows, int64_t cols, const StoredPanel& to,
                bool accumulate);
// to = from, or to += from, in the dtype of the view.
void write_gradient(const float* from, const GradientView& to);

// y[rows, width] = residual (or 0) + bias (or 0); `residual` may be y.
void start_rows(int64_t rows, int64_t width, TensorView bias, const float* residual, float* y);
// Sums of each column of x[rows, width].
void column_sums(int64_t rows, int64_t width, const float* x, float* sums);

// y = gelu(x), with tanh.
void gelu(int64_t numel, const float* x, float* y);
// y = gelu(x); dy_to_dx *= gelu'(x).
void gelu_backward(int64_t numel, const float* x, float* y, float* dy_to_dx);

}  // namespace zerorun::train
