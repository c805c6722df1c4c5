#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

namespace zerorun {

// A device's memory as a stream-ordered pool that keeps what was freed for the next allocation: a
// training step, which asks for the same sizes as the one before, calls CUDA for none of them.
// Blocks share it, so they may outlive their device.
class CudaPool {
 public:
  explicit CudaPool(int device);
  CudaPool(const CudaPool&) = delete;
  CudaPool& operator=(const CudaPool&) = delete;
  ~CudaPool();

  // Usable on every stream at once. It is free for whoever has it next when it is freed, or when he
  // gets there. Null when the device has no more.
  void* allocate(size_t nbytes);
  void free(void* data, size_t nbytes) noexcept;
  // For work on `stream` only: free when that stream gets there.
  void* allocate(size_t nbytes, cudaStream_t stream);
  void free(void* data, cudaStream_t stream) noexcept;

  // Gives CUDA what is kept. All work on it must be done.
  void trim() noexcept;

  struct Free {
    size_t free = 0;
    size_t total = 0;
  };
  // Of the whole GPU; what this pool keeps for later counts as free.
  Free available() const;

 private:
  const int device_;
  cudaMemPool_t pool_ = nullptr;
  cudaStream_t stream_ = nullptr;      // the order of allocate() and free(); never has other work
  mutable std::mutex mutex_;           // guards the next
  std::multimap<size_t, void*> kept_;  // freed blocks by size
};

// Page-locked host memory that every device addresses; null when the system gives none.
struct PinnedBlock {
  void* data = nullptr;
  int device = 0;

  void free() const noexcept;
};
PinnedBlock allocate_pinned_host(int device, size_t nbytes);

// Whether kernels and NCCL can read `data`.
bool is_device_memory(const void* data);

}  // namespace zerorun
