#pragma once

#include <cuda.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/cuda/runtime/cuda_stream.h"

namespace zerorun {

// CUDA events of a device, each for one recording at a time. An event may be recorded anew while
// streams still wait for its previous recording: cudaStreamWaitEvent refers to the latter.
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

// Errors of a stream that the CUDA runtime does not see, and of the events that the stream waits
// for. The stream's events share it.
class StreamErrors {
 public:
  StreamErrors();
  StreamErrors(const StreamErrors&) = delete;
  StreamErrors& operator=(const StreamErrors&) = delete;
  ~StreamErrors();

  void watch(const std::shared_ptr<const CudaStream::Watched>& watched);
  // Makes check() throw also the errors that `other` has or watches now.
  void follow(const StreamErrors& other);
  // Sets the error that check() throws, unless there is one already.
  void keep(std::exception_ptr error);
  void check() const;

 private:
  class Kept;

  const std::shared_ptr<Kept> own_;
  mutable std::mutex mutex_;  // guards the next
  std::vector<std::weak_ptr<const CudaStream::Watched>> watched_;
};

// A word of pinned host memory where the GPU counts events that have happened, for threads of the
// host that wait for them. In a call of the driver such a thread could be held up by another
// thread's call that waits for all streams: the first launch of a kernel loads it, one more launch
// than a queue holds waits for room. If one of these streams waits (HostFlags) for what the first
// thread does next, that would be for ever.
class EventCounter {
 public:
  // `word` is at `address` for the device, and outlives this.
  EventCounter(int device, uint32_t& word, CUdeviceptr address);
  EventCounter(const EventCounter&) = delete;
  EventCounter& operator=(const EventCounter&) = delete;
  ~EventCounter();

  // Returns the word's value once `event`, which has been recorded, has happened. Empty if the GPU
  // cannot write.
  std::optional<uint32_t> count(cudaEvent_t event);
  // True when that many events have happened, in the order of count().
  bool has_reached(uint32_t count) const;
  // Throws DeviceError if the GPU fails before that.
  void wait(uint32_t count);
  // The GPU has failed, and counts no event any more.
  void fail(std::string_view error) noexcept;

 private:
  void check();
  void ask_driver();

  const int device_;
  uint32_t& word_;
  const CUdeviceptr address_;
  std::mutex counting_;  // guards the next two
  uint32_t counted_ = 0;
  cudaStream_t stream_ = nullptr;  // waits for the events, and writes
  std::mutex failing_;             // guards the next
  std::string failure_;
};

// Words of pinned host memory through which a stream waits for events of the host. The GPU itself
// polls the word. A host function would occupy a thread of the driver, and CUDA may run only one
// host function at a time.
//
// CUDA does not know of this order, so streams that share a hardware queue must not wait for each
// other in a circle. They do not, as long as a thread waits only for work that was submitted
// before. No stream may be waiting any more when they are destroyed.
class HostFlags : public std::enable_shared_from_this<HostFlags> {
 public:
  explicit HostFlags(int device);
  HostFlags(const HostFlags&) = delete;
  HostFlags& operator=(const HostFlags&) = delete;

  // Makes later work of `stream` wait for `event`. Returns false if the event cannot tell when it
  // happens, the GPU cannot wait, or all words are in use; the caller has to wait then. `failed` is
  // called with the event's error before the stream continues, which it does in any case.
  using Failed = std::function<void(std::exception_ptr)>;
  bool wait(cudaStream_t stream, const Event& event, Failed failed);
  std::shared_ptr<EventCounter> counter() { return {shared_from_this(), &counter_}; }

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
  uint32_t* word(size_t index) const { return reinterpret_cast<uint32_t*>(words_.data()) + index; }

  const int device_;
  const Buffer words_;  // the flags', and the counter's
  const CUdeviceptr on_device_;
  EventCounter counter_;
  std::vector<Flag> flags_;
  std::mutex mutex_;  // guards the next
  std::vector<Flag*> free_;
};

// A CUDA stream that this object created, or one that it borrows from a framework.
class CudaStreamImpl final : public CudaStream {
 public:
  enum class Priority { low, high };

  CudaStreamImpl(int device, Priority priority, std::shared_ptr<EventPool> events,
                 std::shared_ptr<HostFlags> flags);
  CudaStreamImpl(const CudaStreamImpl&) = delete;
  CudaStreamImpl& operator=(const CudaStreamImpl&) = delete;
  ~CudaStreamImpl() override;

  // Uses the caller's stream from now on, which must outlive this object.
  void borrow(cudaStream_t handle);

  Event record() override;
  void wait(const Event& event) override;
  void synchronize() override;
  cudaStream_t handle() const override { return handle_; }
  int device() const override { return device_; }
  void watch(std::shared_ptr<const Watched> watched) override { errors_->watch(watched); }

 private:
  void end() noexcept;

  const int device_;
  const std::shared_ptr<StreamErrors> errors_;
  const std::shared_ptr<EventPool> events_;
  const std::shared_ptr<HostFlags> flags_;
  cudaStream_t handle_ = nullptr;
  bool owned_ = false;
  bool waits_for_host_ = false;  // true once the stream has waited through flags_
};

}  // namespace zerorun
