#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "device/memory_ledger.h"
#include "zerorun/tensor.h"

namespace zerorun {

// A device's memory as a stream-ordered pool that keeps freed blocks for the next allocation of the
// same size. A training step asks for the same sizes as the step before, so it does not call CUDA.
// Kept blocks are counted in the ledger; a block that a whole step did not use returns to CUDA.
// Blocks share the pool, so they may outlive their device.
class CudaPool {
 public:
  CudaPool(int device, std::shared_ptr<MemoryLedger> ledger);
  CudaPool(const CudaPool&) = delete;
  CudaPool& operator=(const CudaPool&) = delete;
  ~CudaPool();

  // Memory for all streams, usable at once. Work on a freed block must be done, or be ordered
  // before the work of the next owner. reuse() returns a kept block of this size; null if there is
  // none. allocate() asks CUDA; null if the device has no more memory.
  void* reuse(size_t nbytes);
  void* allocate(size_t nbytes);
  void free(void* data, size_t nbytes) noexcept;
  // Memory for work on `stream` only; both take effect in the stream's order.
  void* allocate(size_t nbytes, cudaStream_t stream);
  void free(void* data, cudaStream_t stream) noexcept;

  // Lets kernels on the GPU `peer` use this memory, if that GPU can reach it.
  void share_with(int peer);

  // To be called after each step. Returns true if a kept block was not used during the whole step.
  bool end_step();
  // Return kept blocks to CUDA, the longest kept first: those that end_step() found, or at least
  // `nbytes` bytes. All work on these blocks must be done.
  void trim_unused() noexcept;
  void trim(size_t nbytes) noexcept;

  // The free memory of the whole GPU; memory that this pool keeps for later counts as free.
  size_t available() const;

 private:
  struct Kept {
    void* data = nullptr;
    size_t nbytes = 0;
    uint64_t step = 0;  // in which it was freed
  };
  bool is_unused(const Kept& block) const { return block.step + 1 < step_; }
  // Returns blocks to CUDA, the longest kept first, until enough(next block, bytes returned so
  // far).
  void trim_until(const std::function<bool(const Kept&, size_t)>& enough) noexcept;

  const int device_;
  const std::shared_ptr<MemoryLedger> ledger_;
  cudaMemPool_t pool_ = nullptr;
  cudaStream_t stream_ = nullptr;  // the order of allocate() and free(); never has other work
  std::mutex mutex_;               // guards the next
  std::vector<Kept> kept_;         // in the order in which they were freed; the last is used first
  uint64_t step_ = 0;
};

// Page-locked, page-aligned host memory that all devices can address; empty if the system has none.
Buffer allocate_pinned_host(int device, size_t nbytes);

// True if kernels and NCCL can read `data`: device, managed or page-locked memory.
bool is_addressable(const void* data);

}  // namespace zerorun
