#include "comm/nccl/scratch.h"

#include "device/drain.h"

namespace zerorun {

NcclScratch::~NcclScratch() { drain(free_); }

std::byte* NcclScratch::acquire(CudaStream& stream, size_t nbytes) {
  if (block_.nbytes() < nbytes) {
    free_.synchronize();
    block_ = {};  // before the larger one: there need not be room for both
    block_ = device_.allocate(nbytes, MemoryCategory::buckets);
  } else {
    stream.wait(free_);
  }
  return static_cast<std::byte*>(block_.data());
}

}  // namespace zerorun
