#pragma once

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "device/convert.h"
#include "device/cuda/kernels/launch.h"
#include "device/cuda/kernels/vector.h"
#include "train/cuda/checks.h"
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

// Host code: calls body(pointer to T, constant N) with the type of `dtype` and the number of
// elements that one access moves, given where matrices begin and how long their rows are.
template <typename Body>
void with_vectors(DType dtype, std::initializer_list<TensorView> matrices, int64_t row,
                  const Body& body) {
  with_floating(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int kWide = 16 / sizeof(T);
    bool wide = row % kWide == 0;
    for (const TensorView& matrix : matrices) {
      // Its own dtype: an access moves kWide fp32 gradients too, beside 16-bit activations.
      wide = wide && is_aligned(matrix.data, size_of(matrix.dtype) * kWide);
    }
    if (wide) {
      body(type, std::integral_constant<int, kWide>());
    } else {
      body(type, std::integral_constant<int, 1>());
    }
  });
}

inline dim3 grid_of(int64_t x, int64_t y = 1) {
  return {static_cast<unsigned>(x), static_cast<unsigned>(y)};
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace zerorun::train::cuda
