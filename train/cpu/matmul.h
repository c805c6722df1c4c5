#pragma once

#include <vector>

#include "train/model/kernels.h"

namespace zerorun::train {

// Products of activations with weights of any dtype, by oneDNN. fp32 weights are used in place.
// 16-bit weights are converted to fp32 panel by panel in scratch memory that fits into the cache;
// gradients are computed in fp32 tiles and rounded once.
class Matmul {
 public:
  // y[rows, out] = beta * y + x[rows, in] * weight
  void forward(const LinearShape& shape, const float* x, TensorView weight, float beta, float* y);
  // x[rows, in] = y[rows, out] * weight^T
  void transposed(const LinearShape& shape, const float* y, TensorView weight, float* x);
  // weight += or = x^T * dy
  void weight_gradient(const LinearShape& shape, const float* x, const float* dy,
                       const GradientView& weight);

 private:
  float* panel(int64_t rows, int64_t cols);

  std::vector<float> scratch_;
};

}  // namespace zerorun::train
