#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "device/cuda/cuda_stream.h"
#include "zerorun/tensor.h"

namespace zerorun {

// A device's memory as a stream-ordered pool that keeps what was freed for the next allocation: a
// training step, which asks for the same sizes as the one before, calls CUDA for none of them.
// Blocks share it, so they may outlive their device.
class CudaPool : public std::enable_shared_from_this<CudaPool> {
 public:
  explicit CudaPool(int device);
  CudaPool(const CudaPool&) = delete;
  CudaPool& operator=(const CudaPool&) = delete;
  ~CudaPool();

  // Usable on every stream at once; all work on it must be done before it is freed. Null when the
  // device has no more.
  void* allocate(size_t nbytes);
  void free(void* data, size_t nbytes) noexcept;

  // For work on one stream only: handed back when that stream gets there.
  Buffer scratch(const CudaStream& stream, size_t nbytes);

  struct Free {
    size_t free = 0;
    size_t total = 0;
  };
  // Of the whole GPU; what this pool keeps for later counts as free.
  Free available() const;

 private:
  // Null when the device has no more; other errors are thrown.
  void* take(size_t nbytes, cudaStream_t stream);
  // The same, once more when memory that is kept was in the way.
  void* take_or_trim(size_t nbytes, cudaStream_t stream);
  // Gives CUDA what is kept; false when that is nothing.
  bool trim() noexcept;

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
