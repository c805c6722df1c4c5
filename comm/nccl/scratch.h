#pragma once

#include <cstddef>
#include <utility>

#include "device/cuda/cuda_device.h"

namespace zerorun {

// Temporary memory for sums by NCCL that are then cast or accumulated. It is one block, allocated
// at first use, as large as the largest operation needs, and reused by later operations on any
// stream.
class NcclScratch {
 public:
  explicit NcclScratch(CudaDevice& device) : device_(device) {}
  NcclScratch(const NcclScratch&) = delete;
  NcclScratch& operator=(const NcclScratch&) = delete;
  ~NcclScratch();

  // Returns at least `nbytes` bytes for work that is submitted to `stream` before release().
  std::byte* acquire(CudaStream& stream, size_t nbytes);
  // `done`: with that work.
  void release(Event done) { free_ = std::move(done); }

 private:
  CudaDevice& device_;
  Buffer block_;
  Event free_;  // the last work that used the block has completed
};

}  // namespace zerorun
