// Kernels as C++ functions on the CPU. The threads of a block are fibers of one thread that take
// turns at barriers and exchanges, so that a block's result does not depend on timing; blocks run
// one after the other. A warp's threads do not run in lockstep: code that relies on it fails here.
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
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __restrict__ __restrict
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
// Waits for the threads of its warp that `mask` names.
void warp_barrier(unsigned mask);
// Gives `bits` to its warp and returns what thread `lane` of the warp gave.
uint64_t exchange(unsigned mask, uint64_t bits, int lane);
unsigned ballot(unsigned mask, bool vote);
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
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline unsigned __ballot_sync(unsigned mask, bool vote) {
  return zerorun::fake::ballot(mask, vote);
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane) {
  return zerorun::fake::exchange_value(mask, value, lane & 31);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return zerorun::fake::exchange_value(mask, value, zerorun::fake::lane_of_thread() ^ lanes);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta) {
  const int mine = zerorun::fake::lane_of_thread();
  const int lane = mine + static_cast<int>(delta);
  return zerorun::fake::exchange_value(mask, value, lane < warpSize ? lane : mine);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta) {
  const int mine = zerorun::fake::lane_of_thread();
  const int lane = mine - static_cast<int>(delta);
  return zerorun::fake::exchange_value(mask, value, lane >= 0 ? lane : mine);
}

template <typename T>
T atomicAdd(T* address, T value) {
  return std::atomic_ref<T>(*address).fetch_add(value);
}
template <typename T>
T atomicMax(T* address, T value) {
  std::atomic_ref<T> target(*address);
  T before = target.load();
  while (before < value && !target.compare_exchange_weak(before, value)) {
  }
  return before;
}

// Correctly rounded, like the host's: it is compiled without contraction.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float rsqrtf(float a) { return 1.0F / std::sqrt(a); }
inline float __expf(float a) { return std::exp(a); }
inline float __logf(float a) { return std::log(a); }
inline float __fdividef(float a, float b) { return a / b; }
template <typename T>
T __ldg(const T* from) {
  return *from;
}
