#pragma once

#include <cuda_runtime.h>

#include "train/model/kernels.h"

// Layer normalisation over the last dimension (Ba et al., arXiv:1607.06450); see Kernels.
namespace zerorun::train::cuda {

void layer_norm(cudaStream_t stream, const LayerNormShape& shape, TensorView x, TensorView gain,
                TensorView bias, TensorView moments, TensorView y);

// fp32 elements of scratch that layer_norm_backward needs.
int64_t layer_norm_scratch(int64_t width);
void layer_norm_backward(cudaStream_t stream, const LayerNormShape& shape,
                         const LayerNormState& state, TensorView dy,
                         const LayerNormGradients& gradients, float* scratch);

}  // namespace zerorun::train::cuda
