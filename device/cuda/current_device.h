#pragma once

#include <new>

namespace zerorun {

// Makes `device` the thread's current one while this lives. A thread that has used no device yet
// keeps it: CUDA's default is device 0, on which going back there would make a context, of some
// hundred MiB, for every rank of the host.
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
