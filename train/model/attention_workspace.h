#pragma once

#include <cstdint>

#include "train/model/kernels.h"

// The memory of cuDNN's backward of attention besides its inputs and outputs. Sizes are doubles,
// since no size is too large to ask for.
namespace zerorun::train {

// True if cuDNN has kernels for it; ours need no such memory.
inline bool cudnn_has_attention(const AttentionShape& shape, DType dtype) {
  const int64_t width = shape.width / shape.heads;
  return dtype != DType::fp32 && shape.first == 0 && width % 8 == 0 && width <= 128;
}

// Bytes for gradients of attention's probabilities, which the deterministic backward takes unless
// it is told not to. The tiles are those of cudnn_frontend's scaled_dot_product_flash_attention.h.
inline double attention_workspace(const AttentionShape& shape) {
  const int64_t queries = (shape.seq_len + 63) / 64 * 64;
  const int64_t keys = (shape.seq_len + 127) / 128 * 128;
  return 2.0 * static_cast<double>(shape.batch * shape.heads) * static_cast<double>(queries) *
         static_cast<double>(keys);
}

// Bytes of the backward that adds up gradients of queries in any order (--fast_attention): those in
// fp32, and a sum for each query and head.
inline double fast_attention_workspace(const AttentionShape& shape) {
  return sizeof(float) * static_cast<double>(shape.batch) * static_cast<double>(shape.seq_len) *
         static_cast<double>(shape.width + shape.heads);
}

}  // namespace zerorun::train
