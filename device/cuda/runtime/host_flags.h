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

  // Later work of `stream` waits for `event`. False where the event cannot tell when it happens,
  // the GPU cannot wait, or all words are in use: then the caller has to wait. `failed` is called
  // with the event's error before the stream goes on, which it does in any case.
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

  // As many as are waited for at once. No more are made later: pinning memory may wait for the
  // whole GPU, where a stream may wait for what this thread has yet to do.
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
