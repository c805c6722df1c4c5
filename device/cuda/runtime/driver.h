#pragma once

#include <cuda.h>

namespace zerorun {

// Functions of the driver without an equivalent in the runtime; null if the driver has none. Unlike
// those of the runtime, they need a thread with a context, which cudaSetDevice makes.
struct DriverFunctions {
  decltype(&cuCtxGetCurrent) current_context = nullptr;
  decltype(&cuStreamWaitValue32) wait_value = nullptr;
};
const DriverFunctions& driver_functions();

}  // namespace zerorun
