#pragma once

#include <cstdint>

#include "train/model/kernels.h"
#include "zerorun/dtype.h"

// The memory of cuDNN's backward of attention besides its inputs and outputs.
namespace zerorun::train {

// True if cuDNN has kernels for it; ours need no such memory.
bool cudnn_has_attention(const AttentionShape& shape, DType dtype);

// Bytes for gradients of attention's probabilities, which the deterministic backward takes unless
// it is told not to. A double, since no size is too large to ask for.
double attention_workspace(const AttentionShape& shape);

// Bytes of the backward that adds up gradients of queries in any order (--fast_attention).
double fast_attention_workspace(const AttentionShape& shape);

}  // namespace zerorun::train
