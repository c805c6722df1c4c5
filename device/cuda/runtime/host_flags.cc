#include "device/cuda/runtime/host_flags.h"

#include <atomic>
#include <utility>

#include "core/check.h"
#include "device/cpu/cpu_stream.h"
#include "device/cuda/runtime/cuda_error.h"
#include "device/cuda/runtime/cuda_memory.h"
#include "device/cuda/runtime/current_device.h"
#include "device/cuda/runtime/driver.h"

namespace zerorun {

namespace {

Buffer pin(int device, size_t nbytes) {
  const PinnedBlock block = allocate_pinned_host(device, nbytes);
  if (block.data == nullptr) {
    fail<DeviceError>("cuda:{}: cannot pin {} bytes of host memory", device, nbytes);
  }
  return {block.data, nbytes, [block] { block.free(); }};
}

}  // namespace

HostFlags::HostFlags(int device) : device_(device), words_(pin(device, kFlags * sizeof(uint32_t))) {
  const CurrentDevice current(device_);
  void* on_device = nullptr;
  check_cuda(cudaHostGetDevicePointer(&on_device, words_.data(), 0), "cudaHostGetDevicePointer");
  flags_.reserve(kFlags);
  free_.reserve(kFlags);  // raise() must not allocate
  for (size_t i = 0; i < kFlags; ++i) {
    auto* const word = reinterpret_cast<uint32_t*>(words_.data()) + i;
    *word = 0;
    flags_.push_back({word, reinterpret_cast<CUdeviceptr>(on_device) + i * sizeof(uint32_t), 0});
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
  // Also if the device is current by default: functions of the driver need a context (driver.h).
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

}  // namespace zerorun
