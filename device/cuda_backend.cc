#include "device/cuda_backend.h"

#include <dlfcn.h>

#include "config/env.h"
#include "core/check.h"
#include "device/plugin.h"

namespace zerorun {

namespace {

const CudaBackend& load_backend() {
  if (!ZERORUN_HAVE_CUDA) {
    fail<DeviceError>(
        "CUDA: this build of zerorun has no CUDA backend; build it with -DZERORUN_CUDA=ON on a "
        "system with nvcc (cmake reports what is missing)");
  }
  try {
    return plugin_entry<CudaBackend>(open_plugin(kCudaLibrary), kCudaBackendEntry);
  } catch (const DeviceError& error) {
    fail<DeviceError>("CUDA: {}", error.what());
  }
}

void check_driver() {
  if (!ZERORUN_HAVE_CUDA || dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) return;
  const char* reason = dlerror();
  fail<DeviceError>("CUDA: NVIDIA's driver is not installed ({})",
                    reason == nullptr ? "unknown error" : reason);
}

}  // namespace

const CudaBackend& open_cuda_backend() {
  check_driver();
  const CudaBackend& backend = load_backend();
  if (backend.device_count() == 0) {
    fail<DeviceError>("CUDA: no GPU is visible: {}", backend.why_no_device());
  }
  return backend;
}

std::shared_ptr<Device> make_cuda_device(const CudaDeviceOptions& options) {
  return open_cuda_backend().make_device(options);
}

std::vector<std::string> describe_cuda() {
  std::vector<std::string> lines;
  if (ZERORUN_HAVE_CUDA) lines.emplace_back("backend compiled by nvcc " ZERORUN_CUDA_BUILD);
  try {
    for (std::string& line : load_backend().report()) lines.push_back(std::move(line));
  } catch (const DeviceError& error) {
    constexpr std::string_view kPrefix = "CUDA: ";  // the name of the line already says it
    const std::string_view problem = error.what();
    lines.push_back("backend: missing: " +
                    std::string(problem.substr(problem.starts_with(kPrefix) ? kPrefix.size() : 0)));
  }
  return lines;
}

std::string why_no_cuda() {
  try {
    open_cuda_backend();
    return {};
  } catch (const DeviceError& error) {
    return error.what();
  }
}

std::string why_driver_fails() {
  const std::string problem = why_no_cuda();
  if (problem.empty()) return {};
  try {
    check_driver();
    return load_backend().driver_fails() ? problem : "";
  } catch (const DeviceError&) {  // there is no driver, or no backend to use it
    return {};
  }
}

bool cuda_is_available() { return why_no_cuda().empty(); }

std::shared_ptr<Device> make_device(Accelerator accelerator) {
  if (accelerator == Accelerator::cuda) return make_cuda_device();
  // Where all GPUs are hidden, the driver is not asked: the launcher hides them if it hangs.
  if (accelerator == Accelerator::automatic && !hides_all_gpus()) {
    if (cuda_is_available()) return make_cuda_device();
    if (const std::string problem = why_driver_fails(); !problem.empty()) {
      fail<DeviceError>("{}; to train on the CPU, set CUDA_VISIBLE_DEVICES to nothing", problem);
    }
  }
  return make_cpu_device();
}

}  // namespace zerorun
