// NVML as NCCL asks it (src/misc/nvmlwrap.cc): GPUs without NVLink or access to peers' memory.
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include <cstdint>

#include "testing/nccl_on_fake_cuda/fake.h"

using namespace zerorun::fake_cuda;

#define ZR_NVML extern "C" __attribute__((visibility("default")))

namespace {

// A handle is a device's number, plus 1.
nvmlDevice_t handle_of(int device) {
  return reinterpret_cast<nvmlDevice_t>(static_cast<uintptr_t>(device + 1));
}

}  // namespace

ZR_NVML nvmlReturn_t nvmlInit_v2() { return NVML_SUCCESS; }

ZR_NVML nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(device_count());
  return NVML_SUCCESS;
}

ZR_NVML nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device) {
  *device = handle_of(static_cast<int>(index));
  return is_device(static_cast<int>(index)) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

ZR_NVML nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t* device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}

ZR_NVML nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* address, nvmlDevice_t* device) {
  int number = 0;
  if (cudaDeviceGetByPCIBusId(&number, address) != cudaSuccess) return NVML_ERROR_NOT_FOUND;
  *device = handle_of(number);
  return NVML_SUCCESS;
}

ZR_NVML nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* info) {
  *info = {};
  const auto number = static_cast<int>(reinterpret_cast<uintptr_t>(device)) - 1;
  bus_address(number).copy(info->busId, sizeof info->busId - 1);
  info->bus = static_cast<unsigned>(attribute_of(cudaDevAttrPciBusId, number));
  info->pciDeviceId = 0x233010de;  // an H100
  return NVML_SUCCESS;
}

ZR_NVML nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t /*device*/, unsigned* value) {
  *value = 5;
  return NVML_SUCCESS;
}

ZR_NVML nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t /*device*/, unsigned* value) {
  *value = 16;
  return NVML_SUCCESS;
}

ZR_NVML nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t /*device*/, int* major,
                                                        int* minor) {
  *major = attribute_of(cudaDevAttrComputeCapabilityMajor, 0);
  *minor = attribute_of(cudaDevAttrComputeCapabilityMinor, 0);
  return NVML_SUCCESS;
}

ZR_NVML nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t /*device*/, nvmlDevice_t /*peer*/,
                                            nvmlGpuP2PCapsIndex_t /*what*/,
                                            nvmlGpuP2PStatus_t* status) {
  *status = NVML_P2P_STATUS_NOT_SUPPORTED;
  return NVML_SUCCESS;
}

ZR_NVML nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t /*device*/, unsigned /*link*/,
                                                   nvmlNvLinkCapability_t /*capability*/,
                                                   unsigned* /*value*/) {
  return NVML_ERROR_NOT_SUPPORTED;
}

ZR_NVML nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t /*device*/, int /*count*/,
                                              nvmlFieldValue_t* /*values*/) {
  return NVML_ERROR_NOT_SUPPORTED;
}
