#pragma once

#include <cuda_runtime.h>

#include <string>
#include <string_view>

#include "zerorun/error.h"

namespace zerorun {

// Kernels include this file, so it does without fmt, whose compile-time checks nvcc cannot run.
//
// Throws DeviceError naming the device and `what` was being done ("cudaMemcpyAsync of 12 bytes").
inline void check_cuda(cudaError_t result, std::string_view what) {
  if (result == cudaSuccess) [[likely]]
    return;
  int device = -1;
  const bool known = cudaGetDevice(&device) == cudaSuccess;
  cudaGetLastError();  // the error is reported here; the next call shall not meet it again
  std::string text = "cuda:" + (known ? std::to_string(device) : "?") + ": ";
  text.append(what).append(" failed: ").append(cudaGetErrorString(result));
  throw DeviceError(text + " (" + cudaGetErrorName(result) + ")");
}

}  // namespace zerorun
