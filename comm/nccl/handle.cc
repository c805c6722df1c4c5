#include "comm/nccl/handle.h"

#include <utility>

namespace zerorun {

void NcclHandle::set(ncclComm_t comm) {
  const std::lock_guard lock(mutex_);
  comm_ = comm;
}

std::optional<ncclResult_t> NcclHandle::call(const Function& function) {
  ncclComm_t comm = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return std::nullopt;
    comm = comm_;
    ++calls_;
    begun_ = Clock::now();
  }
  const ncclResult_t result = function(comm);
  const std::lock_guard lock(mutex_);
  if (--calls_ == 0 && comm_ != comm) returned_.notify_all();
  return result;
}

ncclComm_t NcclHandle::exchange(ncclComm_t next) {
  std::unique_lock lock(mutex_);
  if (comm_ == nullptr) return nullptr;
  ncclComm_t const comm = std::exchange(comm_, next);
  returned_.wait_until(lock, begun_ + kPatience, [&] { return calls_ == 0; });
  return comm;
}

}  // namespace zerorun
