#pragma once

#include <cuda.h>

namespace zerorun {

// Functions of the driver that the runtime has no equal of; null where the driver has none. Other
// than the runtime's they need a thread that has a context: after cudaSetDevice.
struct DriverFunctions {
  decltype(&cuCtxGetCurrent) current_context = nullptr;
  decltype(&cuStreamWaitValue32) wait_value = nullptr;
};
const DriverFunctions& driver_functions();

}  // namespace zerorun
