#pragma once

#include <cuda_runtime.h>

#include "train/model/kernels.h"

// Sum of a token's and a position's learned vectors; see Kernels.
namespace zerorun::train::cuda {

void embed(cudaStream_t stream, const TokenGrid& grid, TensorView wte, TensorView wpe,
           TensorView x);
// Adds rows in the order of the batch, without atomics: the same bits every time.
void embed_backward(cudaStream_t stream, const TokenGrid& grid, const TokenOrder& order,
                    TensorView dx, const GradientView& wte, const GradientView& wpe);

}  // namespace zerorun::train::cuda
