#pragma once

#include "train/model/kernels.h"

// Layer normalisation over the last dimension (Ba et al., arXiv:1607.06450).
namespace zerorun::train {

struct LayerNormWeights {
  const float* gain = nullptr;
  const float* bias = nullptr;
};

// y = (x - mean) / deviation * gain + bias; writes mean and 1/deviation of each row to `moments`.
void layer_norm(const LayerNormShape& shape, const float* x, LayerNormWeights weights,
                float* moments, float* y);

struct LayerNormSums {
  float* gain = nullptr;
  float* bias = nullptr;
};

// dx += the input's gradient; `sums` receives the gradients of gain and bias.
void layer_norm_backward(const LayerNormShape& shape, const float* x, const float* moments,
                         const float* gain, const float* dy, float* dx, LayerNormSums sums);

}  // namespace zerorun::train
