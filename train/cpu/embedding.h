#pragma once

#include "train/model/kernels.h"

// Embedding: the sum of the learned vectors of a token and of its position.
namespace zerorun::train {

void embed(const TokenGrid& grid, TensorView wte, TensorView wpe, float* x);
void embed_backward(const TokenGrid& grid, const TokenOrder& order, const float* dx,
                    const GradientView& wte, const GradientView& wpe);

}  // namespace zerorun::train
