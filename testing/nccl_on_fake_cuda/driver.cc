// The functions of NVIDIA's driver that NCCL calls itself (src/misc/cudawrap.cc).
#include <cuda.h>

#include "testing/nccl_on_fake_cuda/fake.h"

using namespace zerorun::fake_cuda;

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return is_device(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  *value = attribute_of(static_cast<cudaDeviceAttr>(attribute), device);
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult /*error*/, const char** text) {
  *text = "CUDA_ERROR_FAKE";
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult /*error*/, const char** text) {
  *text = "an error of the fake driver";
  return CUDA_SUCCESS;
}

// A context is its device's number, plus 1.
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(static_cast<uintptr_t>(current_device() + 1));
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  if (context != nullptr) cudaSetDevice(static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1);
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate(CUcontext* context, CUctxCreateParams* /*parameters*/, unsigned /*flags*/,
                     CUdevice /*device*/) {
  return cuCtxGetCurrent(context);
}

CUresult cuCtxDestroy(CUcontext /*context*/) { return CUDA_SUCCESS; }

CUresult cuCtxGetDevice(CUdevice* device) {
  *device = current_device();
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  const Block block = block_at(reinterpret_cast<const void*>(address));
  if (block.bytes == 0) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = block.begin;
  if (bytes != nullptr) *bytes = block.bytes;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  const Block block = block_at(reinterpret_cast<const void*>(address));
  if (block.bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(value) = block.type;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(value) = block.device;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      *static_cast<unsigned*>(value) = 0;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, CUstream, void**, void**) {
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig*, CUfunction, void**, void**) {
  return CUDA_SUCCESS;
}
