#include "device/cuda/runtime/current_device.h"

#include "device/cuda/runtime/cuda_error.h"
#include "device/cuda/runtime/driver.h"

namespace zerorun {

namespace {

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

}  // namespace zerorun
