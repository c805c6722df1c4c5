#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "core/check.h"
#include "device/cpu/cpu_stream.h"
#include "device/cuda/runtime/cuda_error.h"
#include "device/cuda/runtime/cuda_memory.h"
#include "device/cuda/runtime/cuda_stream_impl.h"
#include "device/cuda/runtime/current_device.h"

namespace zerorun {

EventPool::~EventPool() {
  const CurrentDevice current(device_, std::nothrow);
  for (cudaEvent_t event : free_) cudaEventDestroy(event);
}

cudaEvent_t EventPool::take() {
  const std::lock_guard lock(mutex_);
  if (!free_.empty()) {
    cudaEvent_t const event = free_.back();
    free_.pop_back();
    return event;
  }
  free_.reserve(made_ + 1);  // so that release() needs no memory
  const CurrentDevice current(device_);
  cudaEvent_t event = nullptr;
  // Threads that wait for an event, mostly those that work for the host, leave their core to
  // others.
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
             "cudaEventCreateWithFlags");
  ++made_;
  return event;
}

void EventPool::release(cudaEvent_t event) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

// The first error that happened on a stream itself. It refers to no other stream, so streams that
// wait for each other in turn make no cycle of references.
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

Buffer pin(int device, size_t nbytes) {
  Buffer pinned = allocate_pinned_host(device, nbytes);
  if (!pinned) fail<DeviceError>("cuda:{}: cannot pin {} bytes of host memory", device, nbytes);
  return pinned;
}

CUdeviceptr address_on_device(int device, const Buffer& pinned) {
  const CurrentDevice current(device);
  void* address = nullptr;
  check_cuda(cudaHostGetDevicePointer(&address, pinned.data(), 0), "cudaHostGetDevicePointer");
  return reinterpret_cast<CUdeviceptr>(address);
}

// An event that the GPU counts.
class CountedEvent final : public Event::State {
 public:
  CountedEvent(std::shared_ptr<EventCounter> counter, uint32_t count,
               std::shared_ptr<const StreamErrors> errors)
      : counter_(std::move(counter)), count_(count), errors_(std::move(errors)) {}
  bool ready() const override { return counter_->has_reached(count_); }
  void synchronize() override {
    counter_->wait(count_);
    errors_->check();
  }

 private:
  const std::shared_ptr<EventCounter> counter_;
  const uint32_t count_;
  const std::shared_ptr<const StreamErrors> errors_;
};

class CudaEventState final : public DeviceEvent {
 public:
  CudaEventState(cudaStream_t stream, int device, std::shared_ptr<EventPool> pool,
                 std::shared_ptr<EventCounter> counter, std::shared_ptr<const StreamErrors> errors)
      : errors_(std::move(errors)),
        device_(device),
        counter_(std::move(counter)),
        pool_(std::move(pool)),
        handle_(pool_->take()) {
    // An exception here would lose the event.
    const CurrentDevice current(device_, std::nothrow);
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
    const RelaxedCapture relaxed;  // zerorun's own threads ask, too
    if (cudaEventQuery(handle_) != cudaErrorNotReady) return true;
    cudaGetLastError();  // CUDA keeps "not ready" as an error
    return false;
  }
  void synchronize() override {
    const CurrentDevice current(device_);
    const RelaxedCapture relaxed;
    const cudaError_t result = cudaEventSynchronize(handle_);
    if (result != cudaSuccess) counter_->fail(cudaGetErrorString(result));
    errors_->check();  // says more than the runtime's error, which is often its consequence
    check_cuda(result, "work on the GPU (seen by cudaEventSynchronize)");
  }
  std::optional<Event> for_host() override {
    const std::optional<uint32_t> count = counter_->count(handle_);
    if (!count) return std::nullopt;
    return Event(std::make_shared<CountedEvent>(counter_, *count, errors_));
  }
  cudaEvent_t handle() const { return handle_; }
  const StreamErrors& errors() const { return *errors_; }

 private:
  const std::shared_ptr<const StreamErrors> errors_;
  const int device_;
  const std::shared_ptr<EventCounter> counter_;
  const std::shared_ptr<EventPool> pool_;
  const cudaEvent_t handle_;
};

}  // namespace

HostFlags::HostFlags(int device)
    : device_(device),
      words_(pin(device, (kFlags + 1) * sizeof(uint32_t))),
      on_device_(address_on_device(device, words_)),
      counter_(device, *word(kFlags), on_device_ + kFlags * sizeof(uint32_t)) {
  flags_.reserve(kFlags);
  free_.reserve(kFlags);  // raise() must not allocate
  for (size_t i = 0; i < kFlags; ++i) {
    *word(i) = 0;
    flags_.push_back({word(i), on_device_ + i * sizeof(uint32_t), 0});
    free_.push_back(&flags_.back());
  }
}

HostFlags::Flag* HostFlags::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return nullptr;
  Flag* const flag = free_.back();
  free_.pop_back();
  ++flag->value;
  return flag;
}

void HostFlags::raise(Flag& flag, uint32_t value) noexcept {
  // The word is written before the flag can be taken again: its value must not decrease.
  std::atomic_ref(*flag.word).store(value, std::memory_order_release);
  const std::lock_guard lock(mutex_);
  free_.push_back(&flag);
}

bool HostFlags::wait(cudaStream_t stream, const Event& event, Failed failed) {
  auto* const host = dynamic_cast<HostEvent*>(event.state().get());
  const auto wait_value = driver_functions().wait_value;
  if (host == nullptr || wait_value == nullptr) return false;
  const CurrentDevice current(device_);
  // Also if the device is current by default: functions of the driver need a context
  // (DriverFunctions).
  check_cuda(cudaSetDevice(device_), "cudaSetDevice");
  Flag* const flag = take();
  if (flag == nullptr) return false;
  const uint32_t value = flag->value;
  host->on_ready([self = shared_from_this(), flag, value,
                  failed = std::move(failed)](const std::exception_ptr& error) {
    if (error) failed(error);
    self->raise(*flag, value);
  });
  const CUresult result = wait_value(stream, flag->address, value, CU_STREAM_WAIT_VALUE_GEQ);
  if (result == CUDA_ERROR_NOT_SUPPORTED) return false;
  // The runtime's errors have the driver's numbers.
  check_cuda(static_cast<cudaError_t>(result), "cuStreamWaitValue32");
  return true;
}

EventCounter::EventCounter(int device, uint32_t& word, CUdeviceptr address)
    : device_(device), word_(word), address_(address) {
  word_ = 0;
  const CurrentDevice current(device);
  // Not later: a stream that is made may wait for the others.
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
             "cudaStreamCreateWithFlags");
}

EventCounter::~EventCounter() {
  const CurrentDevice current(device_, std::nothrow);
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

std::optional<uint32_t> EventCounter::count(cudaEvent_t event) {
  const auto write_value = driver_functions().write_value;
  if (write_value == nullptr) return std::nullopt;
  const CurrentDevice current(device_);
  check_cuda(cudaSetDevice(device_), "cudaSetDevice");  // as in HostFlags::wait()
  const std::lock_guard lock(counting_);
  check_cuda(cudaStreamWaitEvent(stream_, event, 0), "cudaStreamWaitEvent");
  const CUresult result = write_value(stream_, address_, counted_ + 1, 0);
  if (result == CUDA_ERROR_NOT_SUPPORTED) return std::nullopt;
  check_cuda(static_cast<cudaError_t>(result), "cuStreamWriteValue32");
  return ++counted_;
}

bool EventCounter::has_reached(uint32_t count) const {
  const uint32_t now = std::atomic_ref(word_).load(std::memory_order_acquire);
  return static_cast<int32_t>(now - count) >= 0;
}

void EventCounter::wait(uint32_t count) {
  constexpr std::chrono::microseconds kSpin{20};
  constexpr std::chrono::microseconds kPause{100};
  // No work takes as long, so the GPU may have failed.
  constexpr std::chrono::seconds kPatience{10};
  const auto begun = std::chrono::steady_clock::now();
  auto asked = begun;
  while (!has_reached(count)) {
    check();
    const auto now = std::chrono::steady_clock::now();
    if (now - begun < kSpin) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
    if (now - asked < kPatience) continue;
    asked = now;
    ask_driver();
  }
}

void EventCounter::check() {
  const std::lock_guard lock(failing_);
  if (!failure_.empty()) throw DeviceError(failure_);
}

void EventCounter::ask_driver() {
  const CurrentDevice current(device_);
  const RelaxedCapture relaxed;
  const cudaError_t result = cudaStreamQuery(stream_);
  cudaGetLastError();  // CUDA keeps "not ready" as an error
  if (result != cudaSuccess && result != cudaErrorNotReady) fail(cudaGetErrorString(result));
}

void EventCounter::fail(std::string_view error) noexcept {
  const std::lock_guard lock(failing_);
  if (!failure_.empty()) return;
  failure_ = "cuda:" + std::to_string(device_) + ": work on the GPU failed: ";
  failure_ += error;
}

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
  // Non-blocking: no implicit order with the legacy default stream.
  check_cuda(cudaStreamCreateWithPriority(&handle_, cudaStreamNonBlocking,
                                          priority == Priority::high ? greatest : least),
             "cudaStreamCreateWithPriority");
}

CudaStreamImpl::~CudaStreamImpl() { end(); }

void CudaStreamImpl::end() noexcept {
  const CurrentDevice current(device_, std::nothrow);
  // As on the CPU, a stream ends after its work. Flags that it waits for must live until then.
  if (owned_ || waits_for_host_) {
    const cudaError_t result = cudaStreamSynchronize(handle_);
    if (result != cudaSuccess) flags_->counter()->fail(cudaGetErrorString(result));
  }
  if (owned_) cudaStreamDestroy(handle_);
}

void CudaStreamImpl::borrow(cudaStream_t handle) {
  end();
  owned_ = false;
  waits_for_host_ = false;
  handle_ = handle;
}

Event CudaStreamImpl::record() {
  return Event(
      std::make_shared<CudaEventState>(handle_, device_, events_, flags_->counter(), errors_));
}

void CudaStreamImpl::wait(const Event& event) {
  if (!event.state()) return;
  const CurrentDevice current(device_);
  if (const auto* cuda = dynamic_cast<const CudaEventState*>(event.state().get())) {
    cuda->errors().check();  // throws now if the event's stream has already failed
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
  // The event has happened, or the GPU cannot wait for it, so that the caller has to.
  try {
    event.synchronize();
  } catch (...) {
    keep(std::current_exception());
  }
}

void CudaStreamImpl::synchronize() {
  const CurrentDevice current(device_);
  const cudaError_t result = cudaStreamSynchronize(handle_);
  if (result != cudaSuccess) flags_->counter()->fail(cudaGetErrorString(result));
  errors_->check();
  check_cuda(result, "work on the GPU (seen by cudaStreamSynchronize)");
}

}  // namespace zerorun
