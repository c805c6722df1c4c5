#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/build_id.h"
#include "zerorun/device.h"

namespace zerorun {

// The entry points of libzerorun_cuda.so, a plugin (device/plugin.h). Nothing else in zerorun uses
// CUDA.
struct CudaBackend {
  BuildId build;
  // Returns the number of GPUs that CUDA_VISIBLE_DEVICES allows; 0 also if the driver cannot be
  // used.
  int (*device_count)();
  // Returns the CUDA runtime's message on why there is no device; "" if there is one.
  std::string (*why_no_device)();
  // True if the reason is other than that no GPU is visible, such as a driver that is too old.
  bool (*driver_fails)();
  // Returns lines for `zerorun env`: driver, runtime, devices and their connections, libraries. A
  // line says so if one of them is missing.
  std::vector<std::string> (*report)();
  std::shared_ptr<Device> (*make_device)(const CudaDeviceOptions& options);
  // "PCI 0000:0b:00, UUID ...": the place of a GPU in its host, and which GPU, or MIG instance of
  // the one there, a device is.
  std::string (*identity_of)(const Device& device);
};
inline constexpr const char* kCudaLibrary = "libzerorun_cuda.so";
inline constexpr const char* kCudaBackendEntry = "zerorun_cuda_backend";

// Opens the plugin if this machine has NVIDIA's driver. Throws DeviceError that says what is
// missing: the backend in this build, the driver, the plugin's file, or a visible GPU.
const CudaBackend& open_cuda_backend();

// Returns lines for `zerorun env`: CUDA compiler and architectures of this build's backend, and the
// backend's report, which needs no driver; or what is missing to open the backend.
std::vector<std::string> describe_cuda();

// Returns the message of the error that open_cuda_backend would throw; "" if it would not throw.
std::string why_no_cuda();
// Like why_no_cuda, but only if a GPU may be visible and this backend cannot use the driver; else
// "".
std::string why_driver_fails();

}  // namespace zerorun
