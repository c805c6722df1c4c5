#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/build_id.h"
#include "zerorun/device.h"

namespace zerorun {

// The devices of libzerorun_cuda.so, a plugin (device/plugin.h): nothing else in zerorun names
// CUDA.
struct CudaBackend {
  BuildId build;
  // The number of GPUs that CUDA_VISIBLE_DEVICES leaves; 0 also when the driver cannot be used.
  int (*device_count)();
  // Why there is no device, as the CUDA runtime says it; empty when there is one.
  std::string (*why_no_device)();
  // True when that is another reason than that no GPU is visible: a driver that is too old, say.
  bool (*driver_fails)();
  // Lines for `zerorun env`: driver, runtime, devices, how they are connected, and libraries. What
  // is missing has a line that says so.
  std::vector<std::string> (*report)();
  std::shared_ptr<Device> (*make_device)(const CudaDeviceOptions& options);
  // The physical GPU under a device of make_device: equal for two ranks that share one.
  std::string (*identity_of)(const Device& device);
};
inline constexpr const char* kCudaLibrary = "libzerorun_cuda.so";
inline constexpr const char* kCudaBackendEntry = "zerorun_cuda_backend";

// Opens the library if this machine has NVIDIA's driver. Throws DeviceError that says what is
// missing: the backend in this build, the driver, the library's file, or a visible GPU.
const CudaBackend& open_cuda_backend();

// Lines for `zerorun env`: the CUDA compiler and architectures of this build's backend, and its
// report, which needs no driver; or what is missing of the backend itself.
std::vector<std::string> describe_cuda();

// The error that open_cuda_backend would throw; empty when it would throw none.
std::string why_no_cuda();
// The same, only where a GPU may well be visible and the driver cannot be used with this backend.
std::string why_driver_fails();

}  // namespace zerorun
