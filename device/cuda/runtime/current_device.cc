#include "device/cuda/runtime/current_device.h"

#include "device/cuda/runtime/cuda_error.h"

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

bool has_context() {
  const auto current_context = driver_functions().current_context;
  CUcontext context = nullptr;
  return current_context != nullptr && current_context(&context) == CUDA_SUCCESS &&
         context != nullptr;
}

}  // namespace

CurrentDevice::CurrentDevice(int device) {
  int before = 0;
  check_cuda(cudaGetDevice(&before), "cudaGetDevice");
  if (before == device) return;
  const bool used = has_context();
  check_cuda(cudaSetDevice(device), "cudaSetDevice");
  if (used) before_ = before;
}

CurrentDevice::CurrentDevice(int device, std::nothrow_t /*no_throw*/) noexcept {
  int before = 0;
  if (cudaGetDevice(&before) != cudaSuccess || before == device) return;
  const bool used = has_context();
  if (cudaSetDevice(device) == cudaSuccess && used) before_ = before;
}

CurrentDevice::~CurrentDevice() {
  if (before_ >= 0) cudaSetDevice(before_);
}

const DriverFunctions& driver_functions() {
  static const DriverFunctions functions = {
      .current_context = look_up<decltype(&cuCtxGetCurrent)>("cuCtxGetCurrent", 4000),
      // From 11.7 on every GPU can wait, and write, 32 bits.
      .wait_value = look_up<decltype(&cuStreamWaitValue32)>("cuStreamWaitValue32", 11070),
      .write_value = look_up<decltype(&cuStreamWriteValue32)>("cuStreamWriteValue32", 11070),
  };
  return functions;
}

}  // namespace zerorun
