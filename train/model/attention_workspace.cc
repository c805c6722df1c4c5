#include "train/model/attention_workspace.h"

namespace zerorun::train {

namespace {

// From cudnn_frontend/node/scaled_dot_product_flash_attention.h.
constexpr int64_t kQueryTile = 64;
constexpr int64_t kKeyTile = 128;
constexpr int64_t kHeadAlignment = 8;  // elements
constexpr int64_t kWidestHead = 128;

double round_up(int64_t value, int64_t tile) {
  return static_cast<double>((value + tile - 1) / tile * tile);
}

double rows_of(const AttentionShape& shape) {
  return static_cast<double>(shape.batch) * static_cast<double>(shape.seq_len);
}

}  // namespace

bool cudnn_has_attention(const AttentionShape& shape, DType dtype) {
  const int64_t width = shape.width / shape.heads;
  return dtype != DType::fp32 && shape.first == 0 && width % kHeadAlignment == 0 &&
         width <= kWidestHead;
}

double attention_workspace(const AttentionShape& shape) {
  return 2.0 * static_cast<double>(shape.batch * shape.heads) *
         round_up(shape.seq_len, kQueryTile) * round_up(shape.seq_len, kKeyTile);
}

double fast_attention_workspace(const AttentionShape& shape) {
  // Gradients of queries in fp32, and a sum for each query and head.
  return sizeof(float) * rows_of(shape) * static_cast<double>(shape.width + shape.heads);
}

}  // namespace zerorun::train
