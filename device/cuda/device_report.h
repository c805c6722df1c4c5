#pragma once

#include <string>
#include <vector>

namespace zerorun {

// These functions implement members of CudaBackend (device/cuda_backend.h).
int visible_cuda_devices();
std::string why_no_cuda_device();
bool cuda_driver_fails();
// Returns the PCI address and UUID of a GPU.
std::string cuda_device_identity(int index);
// Returns the report's lines about driver, runtime, devices and their connections.
std::vector<std::string> cuda_report();

}  // namespace zerorun
