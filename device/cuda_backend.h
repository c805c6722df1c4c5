#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "zerorun/communicator.h"
#include "zerorun/device.h"

namespace zerorun {

// What libzerorun_cuda.so offers. It is a library of its own, so that one build of zerorun runs on
// machines with and without CUDA; nothing else in zerorun names CUDA or NCCL.
class CudaBackend {
 public:
  virtual ~CudaBackend() = default;

  // GPUs that CUDA_VISIBLE_DEVICES leaves; 0 also when the driver cannot be used.
  virtual int device_count() const = 0;
  // Why there is no device, as the CUDA runtime says it; empty when there is one.
  virtual std::string why_no_device() const = 0;
  // Lines for `zerorun env`: driver, runtime, devices, how they are connected, and libraries. What
  // is missing has a line that says so.
  virtual std::vector<std::string> report() const = 0;

  virtual std::shared_ptr<Device> make_device(const CudaDeviceOptions& options) = 0;
  // The physical GPU under a device of make_device: equal for two ranks that share one.
  virtual std::string identity_of(const Device& device) const = 0;
  // options.device is a device of make_device; comm/nccl/communicator.h says what it does.
  virtual std::shared_ptr<Communicator> make_communicator(const CommunicatorOptions& options) = 0;
};

// Opens the library if this machine has NVIDIA's driver. Throws DeviceError that says what is
// missing: the backend in this build, the driver, the library's file, or a visible GPU.
std::shared_ptr<CudaBackend> open_cuda_backend();

// The file of a library that is opened at run time: beside this code, in an installation's library
// folder seen from bin/ and libexec/zerorun/, in the build tree's lib/, or in an environment's lib/
// seen from its Python packages. Throws DeviceError when it is missing there.
std::string find_cuda_library(std::string_view name);

// Lines for `zerorun env`: the CUDA compiler and architectures of this build's backend, and its
// report, which needs no driver; or what is missing of the backend itself.
std::vector<std::string> describe_cuda();

// Why open_cuda_backend would throw; empty when it would not.
std::string why_no_cuda();

// The name and type of the library's one entry point.
inline constexpr const char* kCudaBackendEntry = "zerorun_cuda_backend";
using CudaBackendEntry = std::shared_ptr<CudaBackend>* (*)();

}  // namespace zerorun
