#pragma once

#include <cstdint>
#include <initializer_list>

#include "device/convert.h"
#include "device/cuda/kernels/launch.h"
#include "train/cuda/kernels.h"
#include "zerorun/tensor.h"

// How kernels of the model walk over matrices: 16 bytes at a time where rows allow it, else element
// by element, and warp by warp.
namespace zerorun::train::cuda {

using zerorun::cuda::blocks_for;
using zerorun::cuda::is_aligned;
using zerorun::cuda::kThreads;
using zerorun::cuda::kWholeWarp;
using zerorun::cuda::launch;
using zerorun::cuda::load_vector;
using zerorun::cuda::store_vector;

inline constexpr int kLanes = 32;  // threads of a warp
inline constexpr int kWarps = kThreads / kLanes;

__device__ inline int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
__device__ inline int warp() { return static_cast<int>(threadIdx.x) / kLanes; }

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kWholeWarp, value, distance);
  }
  return value;
}

__device__ inline float warp_max(float value) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, distance));
  }
  return value;
}

// N elements from `from` on, in fp32.
template <int N, typename T>
__device__ inline void read(const T* from, float* values) {
  const auto vector = load_vector<T, N>(from);
#pragma unroll
  for (int k = 0; k < N; ++k) values[k] = widen(vector.at[k]);
}

template <int N, typename T>
__device__ inline void write(const float* values, T* to) {
  zerorun::cuda::Vector<T, N> vector;
#pragma unroll
  for (int k = 0; k < N; ++k) narrow(values[k], &vector.at[k]);
  store_vector(vector, to);
}

// Host code: calls body<T, N>() with the type of `dtype` and the number of
// elements that one access moves, given where matrices begin and how long their rows are.
template <typename Body>
void with_vectors(DType dtype, std::initializer_list<TensorView> matrices, int64_t row,
                  const Body& body) {
  with_floating(dtype, [&]<typename T>(T*) {
    constexpr int kWide = 16 / sizeof(T);
    bool wide = row % kWide == 0;
    for (const TensorView& matrix : matrices) {
      // Its own dtype: an access moves kWide fp32 gradients too, beside 16-bit activations.
      wide = wide && is_aligned(matrix.data, size_of(matrix.dtype) * kWide);
    }
    if (wide) {
      body.template operator()<T, kWide>();
    } else {
      body.template operator()<T, 1>();
    }
  });
}

inline dim3 grid_of(int64_t x, int64_t y = 1) {
  return {static_cast<unsigned>(x), static_cast<unsigned>(y)};
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

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

// to = or += the sum over [begin, end) of the rows at x + offset_of(i), in the columns from
// `column` below `width` that the block's lanes own. All threads of the block call it, once in a
// kernel.
template <int N, typename T, typename G, typename OffsetOf>
__device__ inline void sum_into(int64_t begin, int64_t end, int64_t column, int64_t width,
                                const T* x, const OffsetOf& offset_of, bool accumulate, G* to) {
  const bool inside = column < width;
  float totals[1][N] = {};
  sum_rows<1, N>(begin, end, totals, [&](int64_t i, float(&sums)[1][N]) {
    if (!inside) return;
    float values[N];
    read<N>(x + offset_of(i) + column, values);
#pragma unroll
    for (int k = 0; k < N; ++k) sums[0][k] += values[k];
  });
  if (inside && warp() == 0) write_gradient<N>(totals[0], accumulate, to + column);
}

}  // namespace zerorun::train::cuda
