#pragma once

#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "device/cuda/runtime/cuda_stream.h"
#include "device/cuda/runtime/host_flags.h"

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
