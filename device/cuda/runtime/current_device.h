#pragma once

#include <new>

namespace zerorun {

// Makes `device` the thread's current one while this lives, around every call of CUDA: on a thread
// that has no device the runtime may use device 0, also for a stream or event of another, and make
// a context there, of some hundred MiB, for every rank of the host. For the same reason a thread
// that has used no device before keeps this one.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device);
  // For destructors: without a device where CUDA refuses.
  CurrentDevice(int device, std::nothrow_t /*no_throw*/) noexcept;
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice();

 private:
  int before_ = -1;  // to go back to; -1: nowhere
};

}  // namespace zerorun
