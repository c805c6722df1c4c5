#pragma once

#include <string>
#include <vector>

namespace zerorun {

// The number of devices that CUDA_VISIBLE_DEVICES leaves; 0 also when the driver cannot be used.
int visible_cuda_devices();
// The CUDA runtime's reason; empty when there is a device.
std::string why_no_cuda_device();
// True when that reason is another one than that there is no device: a driver that is too old, say.
bool cuda_driver_fails();
// The physical GPU, by its PCI address and UUID.
std::string cuda_device_identity(int index);
// Lines for `zerorun env`: driver, runtime, devices, and how they are connected. What is missing
// has a line that says so.
std::vector<std::string> cuda_report();

}  // namespace zerorun
