#include "device/cuda/runtime/driver.h"

#include <cuda_runtime.h>

namespace zerorun {

namespace {

// `version` of CUDA selects the function's ABI.
template <typename Function>
Function look_up(const char* name, unsigned version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t result =
      cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found);
  if (result != cudaSuccess) cudaGetLastError();  // clears the error
  if (result != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<Function>(function);
}

}  // namespace

const DriverFunctions& driver_functions() {
  static const DriverFunctions functions = {
      .current_context = look_up<decltype(&cuCtxGetCurrent)>("cuCtxGetCurrent", 4000),
      // From 11.7 on every GPU can wait, on 32 bits.
      .wait_value = look_up<decltype(&cuStreamWaitValue32)>("cuStreamWaitValue32", 11070),
  };
  return functions;
}

}  // namespace zerorun
