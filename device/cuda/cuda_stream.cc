#include <cstdint>
#include <utility>

#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_stream_impl.h"

namespace zerorun {

void StreamErrors::watch(const std::shared_ptr<const CudaStream::Watched>& watched) {
  const std::lock_guard lock(mutex_);
  std::erase_if(watched_, [](const auto& one) { return one.expired(); });
  for (const auto& known : watched_) {
    if (known.lock() == watched) return;
  }
  watched_.push_back(watched);
}

void StreamErrors::keep(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
}

void StreamErrors::check() const {
  std::exception_ptr error;
  std::vector<std::weak_ptr<const CudaStream::Watched>> watched;
  {
    const std::lock_guard lock(mutex_);
    error = error_;
    watched = watched_;
  }
  if (error) std::rethrow_exception(error);
  for (const auto& one : watched) {
    if (const auto alive = one.lock()) alive->check();
  }
}

namespace {

class CudaEventState final : public Event::State {
 public:
  CudaEventState(cudaStream_t stream, int device, std::shared_ptr<const StreamErrors> errors)
      : errors_(std::move(errors)) {
    const CurrentDevice current(device);
    check_cuda(cudaEventCreateWithFlags(&handle_, cudaEventDisableTiming),
               "cudaEventCreateWithFlags");
    const cudaError_t result = cudaEventRecord(handle_, stream);
    if (result == cudaSuccess) return;
    cudaEventDestroy(handle_);
    check_cuda(result, "cudaEventRecord");
  }
  CudaEventState(const CudaEventState&) = delete;
  CudaEventState& operator=(const CudaEventState&) = delete;
  ~CudaEventState() override { cudaEventDestroy(handle_); }

  // An error counts as ready: synchronize() throws it.
  bool ready() const override { return cudaEventQuery(handle_) != cudaErrorNotReady; }
  void synchronize() override {
    const cudaError_t result = cudaEventSynchronize(handle_);
    errors_->check();  // says more than the runtime's error, which is often its consequence
    check_cuda(result, "work on the GPU (seen by cudaEventSynchronize)");
  }
  cudaEvent_t handle() const { return handle_; }

 private:
  const std::shared_ptr<const StreamErrors> errors_;
  cudaEvent_t handle_ = nullptr;
};

// An event of another device, which a stream waits for on a thread of the driver's.
struct ForeignEvent {
  Event event;
  std::shared_ptr<StreamErrors> errors;

  static void wait(void* argument) {
    const std::unique_ptr<ForeignEvent> self(static_cast<ForeignEvent*>(argument));
    try {
      self->event.synchronize();
    } catch (...) {
      self->errors->keep(std::current_exception());
    }
  }
};

}  // namespace

CudaStreamImpl::CudaStreamImpl(int device, Priority priority)
    : device_(device), errors_(std::make_shared<StreamErrors>()), owned_(true) {
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
  if (!owned_) return;
  cudaStreamSynchronize(handle_);  // as on the CPU, a stream ends when its work is done
  cudaStreamDestroy(handle_);
}

void CudaStreamImpl::borrow(cudaStream_t handle) {
  end();
  owned_ = false;
  handle_ = handle;
}

Event CudaStreamImpl::record() {
  return Event(std::make_shared<CudaEventState>(handle_, device_, errors_));
}

void CudaStreamImpl::wait(const Event& event) {
  if (!event.state()) return;
  if (const auto* cuda = dynamic_cast<const CudaEventState*>(event.state().get())) {
    return check_cuda(cudaStreamWaitEvent(handle_, cuda->handle(), 0), "cudaStreamWaitEvent");
  }
  if (event.ready()) return event.synchronize();
  const CurrentDevice current(device_);
  auto foreign = std::make_unique<ForeignEvent>(ForeignEvent{event, errors_});
  check_cuda(cudaLaunchHostFunc(handle_, &ForeignEvent::wait, foreign.get()), "cudaLaunchHostFunc");
  static_cast<void>(foreign.release());  // the call owns it
}

void CudaStreamImpl::synchronize() {
  const cudaError_t result = cudaStreamSynchronize(handle_);
  errors_->check();
  check_cuda(result, "work on the GPU (seen by cudaStreamSynchronize)");
}

}  // namespace zerorun
