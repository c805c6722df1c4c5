#pragma once

#include <cstddef>

#include "device/cuda/cuda_device.h"

namespace zerorun {

// Temporary memory for NCCL's sums that are then cast or accumulated: one block, made when it is
// first needed, as large as the largest operation needs, and kept for the next on any stream.
class NcclScratch {
 public:
  explicit NcclScratch(CudaDevice& device) : device_(device) {}
  NcclScratch(const NcclScratch&) = delete;
  NcclScratch& operator=(const NcclScratch&) = delete;
  ~NcclScratch();

  // A block of at least `nbytes`, for work that is submitted to `stream` before release().
  std::byte* acquire(CudaStream& stream, size_t nbytes);
  void release(CudaStream& stream);

 private:
  CudaDevice& device_;
  Buffer block_;
  Event free_;  // the work that used it last is done
};

}  // namespace zerorun
