#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <new>

namespace zerorun {

// Makes `device` the thread's current device during the lifetime of this object. Every call of CUDA
// needs it: on a thread without a device the runtime may use device 0, even for a stream or event
// of another device, and make a context of some hundred MiB there for every rank of the host. For
// the same reason a thread that has used no device before keeps this one.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device);
  // For destructors: changes nothing if CUDA refuses.
  CurrentDevice(int device, std::nothrow_t /*no_throw*/) noexcept;
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice();

 private:
  int before_ = -1;  // device to restore; -1: none
};

// During the lifetime of this object, calls of this thread do not invalidate a CUDA graph that
// another thread is capturing. By default even the query of an unrelated event does.
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // exchanged for the previous mode
};

// Functions of the driver without an equivalent in the runtime; null if the driver has none. Unlike
// those of the runtime, they need a thread with a context, which cudaSetDevice makes.
struct DriverFunctions {
  decltype(&cuCtxGetCurrent) current_context = nullptr;
  decltype(&cuStreamWaitValue32) wait_value = nullptr;
  decltype(&cuStreamWriteValue32) write_value = nullptr;
};
const DriverFunctions& driver_functions();

}  // namespace zerorun
