#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>

#include "device/cuda/cuda_stream.h"
#include "zerorun/tensor.h"

namespace zerorun {

// A device's memory as a stream-ordered pool that keeps what was freed for the next allocation.
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
  void free(void* data) noexcept;

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

  const int device_;
  cudaMemPool_t pool_ = nullptr;
  cudaStream_t stream_ = nullptr;  // the order of allocate() and free(); never has other work
};

// Page-locked host memory; null when the system gives none.
struct PinnedBlock {
  void* data = nullptr;

  void free() const noexcept { cudaFreeHost(data); }
};
PinnedBlock allocate_pinned_host(size_t nbytes);

// Whether kernels and NCCL can read `data`.
bool is_device_memory(const void* data);

}  // namespace zerorun
