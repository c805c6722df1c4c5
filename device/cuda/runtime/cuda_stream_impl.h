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

// Words of pinned host memory through which streams and threads of the host wait for each other.
//
// A stream waits for an event of the host at a word that the GPU itself polls. A host function
// would occupy a thread of the driver, and CUDA may run only one host function at a time.
//
// A thread waits for an event of the GPU at a word that the GPU writes. In a call of the driver it
// could be held up by another thread's call that waits for all streams: the first launch of a
// kernel loads it, one more launch than a queue holds waits for room. If one of these streams waits
// for what the first thread does next, that would be for ever.
//
// CUDA does not know of this order, so streams that share a hardware queue must not wait for each
// other in a circle. They do not, as long as a thread waits only for work that was submitted
// before. No stream may be waiting any more when they are destroyed.
class HostFlags : public std::enable_shared_from_this<HostFlags> {
 public:
  explicit HostFlags(int device);
  HostFlags(const HostFlags&) = delete;
  HostFlags& operator=(const HostFlags&) = delete;
  ~HostFlags();

  // Makes later work of `stream` wait for `event`. Returns false if the event cannot tell when it
  // happens, the GPU cannot wait, or all words are in use; the caller has to wait then. `failed` is
  // called with the event's error before the stream continues, which it does in any case.
  using Failed = std::function<void(std::exception_ptr)>;
  bool wait(cudaStream_t stream, const Event& event, Failed failed);

  // See DeviceEvent::for_host. `event` has been recorded; it throws `errors` as well.
  std::optional<Event> tell(cudaEvent_t event, std::shared_ptr<const StreamErrors> errors);
  // True when the GPU has told of that many events, in the order of tell().
  bool has_told(uint32_t count) const;
  // Throws DeviceError if the GPU fails before that.
  void wait_until_told(uint32_t count);
  // The GPU has failed, and tells of no event any more.
  void fail(std::string_view error) noexcept;

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
  void ask_driver();
  uint32_t* word(size_t index) const { return reinterpret_cast<uint32_t*>(words_.data()) + index; }

  const int device_;
  const Buffer words_;  // the last: of how many events the GPU has told
  CUdeviceptr on_device_ = 0;
  std::vector<Flag> flags_;
  std::mutex mutex_;  // guards the next
  std::vector<Flag*> free_;
  std::mutex telling_;  // guards the next two
  uint32_t told_ = 0;
  cudaStream_t stream_ = nullptr;  // waits for the events, and writes
  mutable std::mutex failing_;     // guards the next
  std::string failure_;
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
