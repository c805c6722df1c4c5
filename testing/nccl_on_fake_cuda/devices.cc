// The GPUs themselves.
#include <algorithm>
#include <atomic>
#include <cstdio>

#include "testing/nccl_on_fake_cuda/fake.h"

namespace zerorun::fake_cuda {

namespace {

std::atomic<int> devices{1};

}  // namespace

void set_device_count(int count) { devices = std::clamp(count, 0, kMaxDevices); }

int device_count() { return devices; }

std::string bus_address(int device) {
  char text[16];
  std::snprintf(text, sizeof text, "0000:%02x:00.0", static_cast<unsigned>(0x10 + device));
  return text;
}

int attribute_of(cudaDeviceAttr attribute, int device) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      return 9;
    case cudaDevAttrMultiProcessorCount:
      return 132;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return 232448;
    case cudaDevAttrPciBusId:
      return 0x10 + device;
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
      return 1;
    default:
      return 0;
  }
}

}  // namespace zerorun::fake_cuda
