#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "device/cuda/runtime/cuda_error.h"
#include "device/host_device.h"

namespace zerorun::cuda {

// kernel<<<grid, block, 0, stream>>>(arguments...) as a function, so that the same source also
// compiles as C++ where a kernel is emulated (testing/fake_cuda). Throws DeviceError if the launch
// is refused; errors of a running kernel are reported when the stream is synchronised.
template <typename... Parameters>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream,
            std::type_identity_t<Parameters>... arguments) {
  std::array<void*, sizeof...(Parameters)> pointers = {&arguments...};
  check_cuda(cudaLaunchKernel(kernel, grid, block, pointers.data(), 0, stream),
             "launch of a kernel");
}

inline constexpr int kThreads = 256;
inline constexpr int kWarp = 32;
inline constexpr unsigned kWholeWarp = 0xffffffffU;

// Returns the number of thread blocks for `work` items, one per thread; at least one block.
inline dim3 blocks_for(int64_t work, int64_t most = int64_t{1} << 30) {
  return {static_cast<unsigned>(std::clamp<int64_t>((work + kThreads - 1) / kThreads, 1, most))};
}

// N neighbouring elements. If they are aligned, one memory access reads or writes them.
template <typename T, int N, bool kAligned = true>
struct alignas(kAligned ? sizeof(T) * N : sizeof(T)) Vector {
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
