#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "device/memory_ledger.h"

namespace zerorun {

// A device's memory as a stream-ordered pool that keeps what was freed for the next allocation of
// its size: a training step, which asks for the same sizes as the one before, calls CUDA for none
// of them. What is kept is counted in the ledger, and goes when a whole step has not used it.
// Blocks share the pool, so they may outlive their device.
class CudaPool {
 public:
  CudaPool(int device, std::shared_ptr<MemoryLedger> ledger);
  CudaPool(const CudaPool&) = delete;
  CudaPool& operator=(const CudaPool&) = delete;
  ~CudaPool();

  // Usable on every stream at once. It is free for whoever has it next when it is freed, or when he
  // gets there. Null when nothing of this size is kept,
  void* reuse(size_t nbytes);
  // and when the device has no more.
  void* allocate(size_t nbytes);
  void free(void* data, size_t nbytes) noexcept;
  // For work on `stream` only: free when that stream gets there.
  void* allocate(size_t nbytes, cudaStream_t stream);
  void free(void* data, cudaStream_t stream) noexcept;

  // Kernels on the GPU `peer` may use this memory as well, if it can reach it.
  void share_with(int peer);

  // A step has ended. Whether something is kept that was not used in the whole of it.
  bool end_step();
  // These give CUDA what end_step() found, and of all that is kept at least so many bytes, what was
  // kept longest first. All work on it must be done.
  void trim_unused() noexcept;
  void trim(size_t nbytes) noexcept;

  struct Free {
    size_t free = 0;
    size_t total = 0;
  };
  // The free memory of the whole GPU; memory that this pool keeps for later counts as free.
  Free available() const;

 private:
  struct Kept {
    void* data = nullptr;
    size_t nbytes = 0;
    uint64_t step = 0;  // in which it was freed
  };
  bool is_unused(const Kept& block) const { return block.step + 1 < step_; }
  // Gives CUDA the blocks that were kept longest, until `enough` of the next one and the bytes of
  // those before it.
  void trim_until(const std::function<bool(const Kept&, size_t)>& enough) noexcept;

  const int device_;
  const std::shared_ptr<MemoryLedger> ledger_;
  cudaMemPool_t pool_ = nullptr;
  cudaStream_t stream_ = nullptr;  // the order of allocate() and free(); never has other work
  std::mutex mutex_;               // guards the next
  std::vector<Kept> kept_;         // in the order in which they were freed; the last is used first
  uint64_t step_ = 0;
};

// Page-locked host memory that every device addresses; null when the system gives none.
struct PinnedBlock {
  void* data = nullptr;
  int device = 0;

  void free() const noexcept;
};
PinnedBlock allocate_pinned_host(int device, size_t nbytes);

// True when kernels and NCCL can read `data`: device, managed or page-locked memory.
bool is_addressable(const void* data);

}  // namespace zerorun
