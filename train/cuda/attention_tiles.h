#pragma once

#include "train/cuda/elements.h"
#include "train/model/kernels.h"

// Tiles of attention's forward and backward kernels: kTile rows of one head, widened in
// shared memory. Heads narrower than kWidth, and rows beyond the sequence, are filled with zeros.
namespace zerorun::train::cuda {

// A row has one element more than it needs, so that a column's elements lie in different banks.
template <int kTile, int kWidth>
using Tile = float[kTile][kWidth + 1];
template <int kTile>
using Scores = float[kTile][kTile + 1];

// The place of one head of one sequence in the matrices.
struct HeadView {
  int64_t qkv = 0;      // first element of its first query
  int64_t out = 0;      // likewise in `out`
  int64_t log_sum = 0;  // of its first position
  int64_t width = 0;
  float scale = 1.0F;  // of scores
};

// `index` counts heads, then sequences.
__device__ inline HeadView head_view(const AttentionShape& shape, int64_t index) {
  const int64_t batch = index / shape.heads;
  const int64_t head = index % shape.heads;
  const int64_t width = shape.width / shape.heads;
  const int64_t row = batch * shape.seq_len;
  return {row * 3 * shape.width + head * width, row * shape.width + head * width,
          index * shape.seq_len, width, 1.0F / sqrtf(static_cast<float>(width))};
}

// Rows [first, first + kTile) below `end` of a matrix whose rows lie `stride` apart, times
// `factor`.
template <int kTile, int kWidth, typename T>
__device__ inline void load_tile(const T* from, int64_t stride, int64_t first, int64_t end,
                                 int64_t width, float factor, Tile<kTile, kWidth>& tile) {
  for (int i = threadIdx.x; i < kTile * kWidth; i += kThreads) {
    const int row = i / kWidth;
    const int column = i % kWidth;
    const bool inside = first + row < end && column < width;
    tile[row][column] = inside ? widen(from[(first + row) * stride + column]) * factor : 0.0F;
  }
}

template <int kWidth>
__device__ inline float dot(const float* a, const float* b) {
  float sum = 0.0F;
#pragma unroll 16
  for (int k = 0; k < kWidth; ++k) sum += a[k] * b[k];
  return sum;
}

// A [kTile, kWidth] matrix in the registers of a block: thread t holds elements t, t + kThreads,
// ...
template <int kTile, int kWidth>
struct Accumulator {
  static constexpr int kOwn = kTile * kWidth / kThreads;
  static_assert(kTile * kWidth % kThreads == 0);

  float values[kOwn] = {};

  // each(row, column, value&)
  template <typename Each>
  __device__ void for_each(const Each& each) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int at = i * kThreads + static_cast<int>(threadIdx.x);
      each(at / kWidth, at % kWidth, values[i]);
    }
  }

  // Writes the rows below `end` to a matrix, times `factor`.
  template <typename T>
  __device__ void store(T* to, int64_t stride, int64_t first, int64_t end, int64_t width,
                        float factor) {
    for_each([&](int row, int column, float& value) {
      if (first + row >= end || column >= width) return;
      narrow(value * factor, &to[(first + row) * stride + column]);
    });
  }
};

// Host code: calls body(pointer to T, head width, rows of a tile) with constants for heads of
// `width`. Tiles are as high as shared memory (48 KiB) allows.
template <typename Body>
void with_head(DType dtype, int64_t width, const Body& body) {
  with_floating(dtype, [&](auto* type) {
    const auto call = [&](auto head, auto tile) { body(type, head, tile); };
    if (width <= 64) {
      call(std::integral_constant<int, 64>(), std::integral_constant<int, 32>());
    } else if (width <= 128) {
      call(std::integral_constant<int, 128>(), std::integral_constant<int, 16>());
    } else {
      call(std::integral_constant<int, 256>(), std::integral_constant<int, 8>());
    }
  });
}

}  // namespace zerorun::train::cuda
