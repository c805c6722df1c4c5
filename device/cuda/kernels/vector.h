#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "device/host_device.h"

namespace zerorun::cuda {

// N neighbouring elements, which one memory access reads or writes.
template <typename T, int N>
struct alignas(sizeof(T) * N) Vector {
  T at[N];
};

template <typename T, int N>
__device__ inline Vector<T, N> load_vector(const T* from) {
  return *reinterpret_cast<const Vector<T, N>*>(from);
}

template <typename T, int N>
__device__ inline void store_vector(const Vector<T, N>& vector, T* to) {
  *reinterpret_cast<Vector<T, N>*>(to) = vector;
}

ZR_HOST_DEVICE inline bool is_aligned(const void* data, size_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

}  // namespace zerorun::cuda
