#pragma once

#include <cuda_runtime.h>

#include "train/model/kernels.h"

// Cross entropy of rows of logits; see Kernels. The softmax is never stored: the gradient takes the
// logits' place.
namespace zerorun::train::cuda {

struct LossBuffers {
  float* rows = nullptr;  // scratch, one for each row
  double* sum = nullptr;  // the mean loss is added to it
};

void cross_entropy(cudaStream_t stream, const LogitsShape& shape, const int32_t* targets,
                   TensorView logits, const LossBuffers& loss);
void cross_entropy_gradient(cudaStream_t stream, const LogitsShape& shape, const int32_t* targets,
                            float loss_scale, TensorView logits, const LossBuffers& loss);
// Writes the sum to `to` and clears it.
void move_loss(cudaStream_t stream, double* sum, float* to);

}  // namespace zerorun::train::cuda
