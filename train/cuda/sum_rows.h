#pragma once

#include "train/cuda/elements.h"

// How a block adds rows up, and where the sums go.
namespace zerorun::train::cuda {

// A block sums rows [begin, end) of the kLanes * N columns that its lanes own: each warp takes
// every kWarps-th row and the warps' sums are added in order. add(row, sums) adds a row's
// contribution; totals are valid in the first warp. All threads of the block call it, once in a
// kernel.
template <int kSums, int N, typename Add>
__device__ inline void sum_rows(int64_t begin, int64_t end, float (&totals)[kSums][N],
                                const Add& add) {
  __shared__ float parts[kWarps][kSums * N][kLanes];
  for (int64_t row = begin + warp(); row < end; row += kWarps) add(row, totals);
#pragma unroll
  for (int i = 0; i < kSums * N; ++i) parts[warp()][i][lane()] = totals[i / N][i % N];
  __syncthreads();
  if (warp() > 0) return;
#pragma unroll
  for (int i = 0; i < kSums * N; ++i) {
    float total = 0.0F;
    for (int w = 0; w < kWarps; ++w) total += parts[w][i][lane()];
    totals[i / N][i % N] = total;
  }
}

// to[k] = or += values[k]
template <int N, typename G>
__device__ inline void write_gradient(const float* values, bool accumulate, G* to) {
  float sums[N];
  if (accumulate) {
    read<N>(to, sums);
#pragma unroll
    for (int k = 0; k < N; ++k) sums[k] += values[k];
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) sums[k] = values[k];
  }
  write<N>(sums, to);
}

}  // namespace zerorun::train::cuda
