#include <cstdint>
#include <utility>

#include "device/cuda/runtime/cuda_error.h"
#include "device/cuda/runtime/cuda_stream_impl.h"
#include "device/cuda/runtime/current_device.h"
#include "device/cuda/runtime/relaxed_capture.h"

namespace zerorun {

// The first error that was met on a stream itself. It refers to no other, so that streams may wait
// for each other in turn.
class StreamErrors::Kept final : public CudaStream::Watched {
 public:
  void keep(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
  }
  void check() const override {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
  }

 private:
  mutable std::mutex mutex_;  // guards the next
  std::exception_ptr error_;
};

StreamErrors::StreamErrors() : own_(std::make_shared<Kept>()) {}
StreamErrors::~StreamErrors() = default;

void StreamErrors::watch(const std::shared_ptr<const CudaStream::Watched>& watched) {
  const std::lock_guard lock(mutex_);
  std::erase_if(watched_, [](const auto& one) { return one.expired(); });
  for (const auto& known : watched_) {
    if (known.lock() == watched) return;
  }
  watched_.push_back(watched);
}

void StreamErrors::follow(const StreamErrors& other) {
  if (&other == this) return;
  watch(other.own_);
  std::vector<std::weak_ptr<const CudaStream::Watched>> watched;
  {
    const std::lock_guard lock(other.mutex_);
    watched = other.watched_;
  }
  for (const auto& one : watched) {
    if (const auto alive = one.lock(); alive && alive != own_) watch(alive);
  }
}

void StreamErrors::keep(std::exception_ptr error) { own_->keep(std::move(error)); }

void StreamErrors::check() const {
  own_->check();
  std::vector<std::weak_ptr<const CudaStream::Watched>> watched;
  {
    const std::lock_guard lock(mutex_);
    watched = watched_;
  }
  for (const auto& one : watched) {
    if (const auto alive = one.lock()) alive->check();
  }
}

namespace {

class CudaEventState final : public Event::State {
 public:
  CudaEventState(cudaStream_t stream, int device, std::shared_ptr<EventPool> pool,
                 std::shared_ptr<const StreamErrors> errors)
      : errors_(std::move(errors)),
        device_(device),
        pool_(std::move(pool)),
        handle_(pool_->take()) {
    const CurrentDevice current(device_, std::nothrow);  // the event would be lost
    const cudaError_t result = cudaEventRecord(handle_, stream);
    if (result == cudaSuccess) return;
    pool_->release(handle_);
    check_cuda(result, "cudaEventRecord");
  }
  CudaEventState(const CudaEventState&) = delete;
  CudaEventState& operator=(const CudaEventState&) = delete;
  ~CudaEventState() override { pool_->release(handle_); }

  // An error counts as ready: synchronize() throws it.
  bool ready() const override {
    const CurrentDevice current(device_, std::nothrow);
    const RelaxedCapture relaxed;  // also asked by threads of zerorun's own
    if (cudaEventQuery(handle_) != cudaErrorNotReady) return true;
    cudaGetLastError();  // not an error, but kept as one
    return false;
  }
  void synchronize() override {
    const CurrentDevice current(device_);
    const RelaxedCapture relaxed;
    const cudaError_t result = cudaEventSynchronize(handle_);
    errors_->check();  // says more than the runtime's error, which is often its consequence
    check_cuda(result, "work on the GPU (seen by cudaEventSynchronize)");
  }
  cudaEvent_t handle() const { return handle_; }
  const StreamErrors& errors() const { return *errors_; }

 private:
  const std::shared_ptr<const StreamErrors> errors_;
  const int device_;
  const std::shared_ptr<EventPool> pool_;
  const cudaEvent_t handle_;
};

}  // namespace

CudaStreamImpl::CudaStreamImpl(int device, Priority priority, std::shared_ptr<EventPool> events,
                               std::shared_ptr<HostFlags> flags)
    : device_(device),
      errors_(std::make_shared<StreamErrors>()),
      events_(std::move(events)),
      flags_(std::move(flags)),
      owned_(true) {
  const CurrentDevice current(device_);
  int least = 0;
  int greatest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest),
             "cudaDeviceGetStreamPriorityRange");
  // Non-blocking: nothing here waits for the legacy default stream, or it for us.
  check_cuda(cudaStreamCreateWithPriority(&handle_, cudaStreamNonBlocking,
                                          priority == Priority::high ? greatest : least),
             "cudaStreamCreateWithPriority");
}

CudaStreamImpl::~CudaStreamImpl() { end(); }

void CudaStreamImpl::end() noexcept {
  const CurrentDevice current(device_, std::nothrow);
  // As on the CPU, a stream ends when its work is done. Nor may flags go that it waits for.
  if (owned_ || waits_for_host_) cudaStreamSynchronize(handle_);
  if (owned_) cudaStreamDestroy(handle_);
}

void CudaStreamImpl::borrow(cudaStream_t handle) {
  end();
  owned_ = false;
  waits_for_host_ = false;
  handle_ = handle;
}

Event CudaStreamImpl::record() {
  return Event(std::make_shared<CudaEventState>(handle_, device_, events_, errors_));
}

void CudaStreamImpl::wait(const Event& event) {
  if (!event.state()) return;
  const CurrentDevice current(device_);
  if (const auto* cuda = dynamic_cast<const CudaEventState*>(event.state().get())) {
    cuda->errors().check();  // nobody need go on with what is known to have failed
    errors_->follow(cuda->errors());
    return check_cuda(cudaStreamWaitEvent(handle_, cuda->handle(), 0), "cudaStreamWaitEvent");
  }
  const auto keep = [errors = errors_](std::exception_ptr error) {
    errors->keep(std::move(error));
  };
  if (!event.ready() && flags_->wait(handle_, event, keep)) {
    waits_for_host_ = true;
    return;
  }
  // It has happened, or the GPU cannot wait for it: then the caller does.
  try {
    event.synchronize();
  } catch (...) {
    keep(std::current_exception());
  }
}

void CudaStreamImpl::synchronize() {
  const CurrentDevice current(device_);
  const cudaError_t result = cudaStreamSynchronize(handle_);
  errors_->check();
  check_cuda(result, "work on the GPU (seen by cudaStreamSynchronize)");
}

}  // namespace zerorun
