#pragma once

#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "device/cuda/runtime/cuda_stream.h"
#include "device/cuda/runtime/event_pool.h"
#include "device/cuda/runtime/host_flags.h"

namespace zerorun {

// The errors of a stream that the CUDA runtime does not see, and of events that the stream waits
// for. Events share it.
class StreamErrors {
 public:
  StreamErrors();
  StreamErrors(const StreamErrors&) = delete;
  StreamErrors& operator=(const StreamErrors&) = delete;
  ~StreamErrors();

  void watch(const std::shared_ptr<const CudaStream::Watched>& watched);
  // From now on also what `other` has and watches.
  void follow(const StreamErrors& other);
  // Keeps the first.
  void keep(std::exception_ptr error);
  void check() const;

 private:
  class Kept;

  const std::shared_ptr<Kept> own_;
  mutable std::mutex mutex_;  // guards the next
  std::vector<std::weak_ptr<const CudaStream::Watched>> watched_;
};

// A stream of its own, or one of a framework.
class CudaStreamImpl final : public CudaStream {
 public:
  enum class Priority { low, high };

  CudaStreamImpl(int device, Priority priority, std::shared_ptr<EventPool> events,
                 std::shared_ptr<HostFlags> flags);
  CudaStreamImpl(const CudaStreamImpl&) = delete;
  CudaStreamImpl& operator=(const CudaStreamImpl&) = delete;
  ~CudaStreamImpl() override;

  // Continues on the caller's stream, which must outlive this.
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
  bool waits_for_host_ = false;  // or has
};

}  // namespace zerorun
