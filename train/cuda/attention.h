#pragma once

#include <cuda_runtime.h>

#include "train/model/kernels.h"

// Causal attention in tiles of queries and keys, so that scores exist for one pair of tiles at a
// time (Dao et al., arXiv:2205.14135): for every GPU, dtype and length, in fp32 without tensor
// cores. Where cuDNN is, it takes the place of these for training in 16 bits (cudnn_attention.h).
namespace zerorun::train::cuda {

// Heads are at most kWidestHead wide.
void attention(cudaStream_t stream, const AttentionShape& shape, TensorView qkv, TensorView log_sum,
               TensorView out);
// `scratch` holds batch * seq_len * heads fp32 elements.
void attention_backward(cudaStream_t stream, const AttentionShape& shape,
                        const AttentionState& state, TensorView dout, TensorView dqkv,
                        float* scratch);

}  // namespace zerorun::train::cuda
