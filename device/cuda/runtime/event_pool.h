#pragma once

#include <cuda_runtime.h>

#include <mutex>
#include <vector>

namespace zerorun {

// CUDA events of a device, for one recording each. An event may be recorded anew while streams
// still wait for what it stood for before: they have taken note of that already.
class EventPool {
 public:
  explicit EventPool(int device) : device_(device) {}
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;
  ~EventPool();

  cudaEvent_t take();
  void release(cudaEvent_t event) noexcept;

 private:
  const int device_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
  size_t made_ = 0;
};

}  // namespace zerorun
