#pragma once

#include "train/model/kernels.h"

// Causal multi-head attention in blocks of queries. Scores are stored for one block at a time only,
// and backward recomputes them from the saved log-sums (Dao et al., arXiv:2205.14135).
namespace zerorun::train {

void attention(const AttentionShape& shape, const float* qkv, float* log_sum, float* out);
void attention_backward(const AttentionShape& shape, const AttentionState& state, const float* dout,
                        float* dqkv);

}  // namespace zerorun::train
