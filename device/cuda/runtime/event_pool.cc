#include "device/cuda/runtime/event_pool.h"

#include "device/cuda/runtime/cuda_error.h"
#include "device/cuda/runtime/current_device.h"

namespace zerorun {

EventPool::~EventPool() {
  const CurrentDevice current(device_, std::nothrow);
  for (cudaEvent_t event : free_) cudaEventDestroy(event);
}

cudaEvent_t EventPool::take() {
  const std::lock_guard lock(mutex_);
  if (!free_.empty()) {
    cudaEvent_t const event = free_.back();
    free_.pop_back();
    return event;
  }
  free_.reserve(made_ + 1);  // so that release() needs no memory
  const CurrentDevice current(device_);
  cudaEvent_t event = nullptr;
  // Threads that wait for an event, mostly those that work for the host, leave their core to
  // others.
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
             "cudaEventCreateWithFlags");
  ++made_;
  return event;
}

void EventPool::release(cudaEvent_t event) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

}  // namespace zerorun
