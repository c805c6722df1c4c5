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

ncclComm_t NcclHandle::exchange(std::unique_lock<std::mutex>& lock, ncclComm_t next) {
  ncclComm_t const comm = std::exchange(comm_, next);
  returned_.wait_until(lock, begun_ + kPatience, [&] { return calls_ == 0; });
  return comm;
}

ncclComm_t NcclHandle::take() {
  std::unique_lock lock(mutex_);
  return comm_ == nullptr ? nullptr : exchange(lock, nullptr);
}

void NcclHandle::end(const Function& abort) {
  std::unique_lock lock(mutex_);
  if (comm_ == nullptr) return;
  ending_ = true;
  ncclComm_t const comm = exchange(lock, nullptr);
  lock.unlock();
  abort(comm);  // which joins NCCL's thread: it has stored what it had split off
  if (ncclComm_t const successor = std::exchange(successor_, nullptr)) abort(successor);
  lock.lock();
  ending_ = false;
  returned_.notify_all();
}

void NcclHandle::wait_for_end() {
  std::unique_lock lock(mutex_);
  returned_.wait(lock, [&] { return !ending_; });
}

ncclComm_t NcclHandle::succeed() {
  std::unique_lock lock(mutex_);
  if (comm_ == nullptr || successor_ == nullptr) return nullptr;
  return exchange(lock, std::exchange(successor_, nullptr));
}

}  // namespace zerorun
