// Kernels as C++ functions on the CPU. The threads of a block are fibers of one thread that take
// turns at barriers and exchanges, in one order and then in the other, so that a block's result
// does not depend on timing, and what no barrier orders shows; blocks run one after the other. A
// warp's threads do not run in lockstep: code that relies on it fails here.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <tuple>
#include <typeinfo>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
// One block at a time runs on a thread. As on a GPU, what it holds at a block's start is anything.
#define __shared__ static thread_local

inline thread_local uint3 threadIdx{};
inline thread_local uint3 blockIdx{};
inline thread_local dim3 blockDim;
inline thread_local dim3 gridDim;
inline constexpr int warpSize = 32;

namespace zerorun::fake {

// Runs `body` for every thread of every block. Throws std::logic_error when threads wait for each
// other at different places, or one exchanges with a thread that takes no part.
void run_grid(dim3 grid, dim3 block, const std::function<void()>& body);

// Called by a thread: waits for all threads of its block that have not ended.
void block_barrier();
// Waits for the threads of its warp, which `mask` has to name all.
void warp_barrier(unsigned mask);
// Gives `bits` to its warp and returns what thread `lane` of the warp gave.
uint64_t exchange(unsigned mask, uint64_t bits, int lane);
int lane_of_thread();

template <typename T>
T exchange_value(unsigned mask, T value, int lane) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = exchange(mask, bits, lane);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// `thread` runs on the stream; the kernel's type is for the log.
cudaError_t launch(const std::type_info& kernel, dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, std::function<void()> thread);

template <typename... Parameters, size_t... kIndices>
cudaError_t launch_with(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                        size_t shared_bytes, cudaStream_t stream,
                        std::index_sequence<kIndices...> /*indices*/) {
  std::tuple<Parameters...> copies(*static_cast<Parameters*>(arguments[kIndices])...);
  return launch(typeid(kernel), grid, block, shared_bytes, stream,
                [kernel, copies = std::move(copies)] { std::apply(kernel, copies); });
}

}  // namespace zerorun::fake

template <typename... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                             size_t shared_bytes, cudaStream_t stream) {
  return zerorun::fake::launch_with(kernel, grid, block, arguments, shared_bytes, stream,
                                    std::index_sequence_for<Parameters...>());
}

inline void __syncthreads() { zerorun::fake::block_barrier(); }
inline void __syncwarp(unsigned mask = 0xffffffffU) { zerorun::fake::warp_barrier(mask); }

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return zerorun::fake::exchange_value(mask, value, zerorun::fake::lane_of_thread() ^ lanes);
}

template <typename T>
T atomicAdd(T* address, T value) {
  return std::atomic_ref<T>(*address).fetch_add(value);
}

// Correctly rounded, like the host's: it is compiled without contraction.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
