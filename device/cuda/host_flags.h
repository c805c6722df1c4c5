#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "zerorun/device.h"

namespace zerorun {

// Words of pinned host memory through which a stream waits for events of the host. The GPU itself
// looks at the word: no thread of the driver's waits, as it would in a host function, of which CUDA
// may run one at a time.
//
// CUDA does not see this order, so streams that share a hardware queue must not wait for each other
// in a circle. They cannot, as long as a thread waits only for events of what was submitted before.
class HostFlags : public std::enable_shared_from_this<HostFlags> {
 public:
  explicit HostFlags(int device);
  HostFlags(const HostFlags&) = delete;
  HostFlags& operator=(const HostFlags&) = delete;
  // When it ends, no stream may wait any more.
  ~HostFlags() = default;

  // Later work of `stream` waits for `event`. False where the event cannot tell when it happens or
  // the GPU cannot wait: then nothing was done. `failed` is called with the event's error before
  // the stream goes on, which it does in any case.
  using Failed = std::function<void(std::exception_ptr)>;
  bool wait(cudaStream_t stream, const Event& event, Failed failed);

 private:
  // A word only grows, modulo 2^32: who waits for a value is past it when the word has moved on, so
  // the next user need not know whether the stream has got there.
  struct Flag {
    uint32_t* word = nullptr;
    CUdeviceptr address = 0;  // of the word, for the device
    uint32_t value = 0;       // the last that was waited for
  };

  Flag& take();
  void raise(Flag& flag, uint32_t value) noexcept;
  void add_page();

  struct Unpin {
    void operator()(void* page) const noexcept;
    int device;
  };

  const int device_;
  std::mutex mutex_;  // guards the members below
  std::vector<std::unique_ptr<void, Unpin>> pages_;
  std::deque<Flag> flags_;
  std::vector<Flag*> free_;
};

}  // namespace zerorun
