#pragma once

#include <cuda_runtime.h>

#include "zerorun/tensor.h"

// Passes over the hidden values of the feed-forward part, and what cuBLASLt's epilogues leave open.
namespace zerorun::train::cuda {

// y = gelu(x), with tanh.
void gelu(cudaStream_t stream, TensorView x, TensorView y);
// dy_to_dx *= gelu'(x)
void gelu_backward(cudaStream_t stream, TensorView x, TensorView dy_to_dx);
// Each row of y += bias.
void add_bias(cudaStream_t stream, TensorView bias, TensorView y);

}  // namespace zerorun::train::cuda
