// The functions of NVIDIA's driver that NCCL calls itself (src/misc/cudawrap.cc).
#include <cuda.h>

#include "testing/nccl_on_fake_cuda/fake.h"

using namespace zerorun::fake_cuda;

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return is_device(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

// A context is its device's number, plus 1.
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(static_cast<uintptr_t>(current_device() + 1));
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  *device = current_device();
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  const Block block = block_at(reinterpret_cast<const void*>(address));
  if (block.bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (attribute != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) return CUDA_ERROR_NOT_SUPPORTED;
  *static_cast<int*>(value) = block.device;
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig*, CUfunction, void**, void**) {
  return CUDA_SUCCESS;
}
