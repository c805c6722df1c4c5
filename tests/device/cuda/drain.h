#pragma once

#include "device/cuda/cuda_device.h"
#include "device/drain.h"

namespace zerorun::testing {

// Ends what uses memory before the memory ends, on errors too.
struct Drain {
  CudaDevice& device;
  ~Drain() { drain(device.inline_stream()); }
};

}  // namespace zerorun::testing
