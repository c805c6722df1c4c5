#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "zerorun/device.h"
#include "zerorun/tensor.h"

namespace zerorun {

// Words of pinned host memory through which a stream waits for events of the host. The GPU itself
// polls the word. A host function would occupy a thread of the driver, and CUDA may run only one
// host function at a time.
//
// CUDA does not know of this order, so streams that share a hardware queue must not wait for each
// other in a circle. They do not, as long as a thread waits only for work that was submitted
// before.
class HostFlags : public std::enable_shared_from_this<HostFlags> {
 public:
  explicit HostFlags(int device);
  HostFlags(const HostFlags&) = delete;
  HostFlags& operator=(const HostFlags&) = delete;
  // No stream may be waiting any more.
  ~HostFlags() = default;

  // Makes later work of `stream` wait for `event`. Returns false if the event cannot tell when it
  // happens, the GPU cannot wait, or all words are in use; the caller has to wait then. `failed` is
  // called with the event's error before the stream continues, which it does in any case.
  using Failed = std::function<void(std::exception_ptr)>;
  bool wait(cudaStream_t stream, const Event& event, Failed failed);

 private:
  // A word only grows, modulo 2^32. A stream waits until the word is at least a value, so the word
  // may be used again before the stream has looked at it.
  struct Flag {
    uint32_t* word = nullptr;
    CUdeviceptr address = 0;  // of the word, for the device
    uint32_t value = 0;       // the latest value that a stream waits for
  };

  // Limit of events that are waited for at the same time. None are made later: pinning memory may
  // wait for the whole GPU, where a stream may wait for something that this thread does afterwards.
  static constexpr size_t kFlags = 1U << 14U;

  Flag* take();
  void raise(Flag& flag, uint32_t value) noexcept;

  const int device_;
  const Buffer words_;
  std::vector<Flag> flags_;
  std::mutex mutex_;  // guards the next
  std::vector<Flag*> free_;
};

}  // namespace zerorun
