#include "device/cuda_backend.h"

#include <dlfcn.h>

#include <array>
#include <filesystem>
#include <string_view>

#include "core/check.h"

namespace zerorun {

namespace {

namespace fs = std::filesystem;

constexpr const char* kDriver = "libcuda.so.1";
constexpr const char* kLibrary = "libzerorun_cuda.so";
// Libraries stay open to the end of the process: CUDA's cannot be unloaded, and devices may outlive
// every reference to the backend.
constexpr int kFlags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;

std::string last_dl_error() {
  const char* text = dlerror();
  return text == nullptr ? "unknown error" : text;
}

// Of the program or library that holds this code.
fs::path own_directory() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_directory), &info) == 0) return {};
  std::error_code error;
  const fs::path file = fs::canonical(info.dli_fname, error);
  return error ? fs::canonical("/proc/self/exe", error).parent_path() : file.parent_path();
}

std::shared_ptr<CudaBackend> load_backend() {
  if (!ZERORUN_HAVE_CUDA) {
    fail<DeviceError>(
        "CUDA: this build of zerorun has no CUDA backend; build it where nvcc is (cmake says what "
        "it misses)");
  }
  const fs::path file = find_cuda_library(kLibrary);
  void* const library = dlopen(file.c_str(), kFlags);
  if (library == nullptr) fail<DeviceError>("CUDA: cannot open the backend: {}", last_dl_error());
  const auto entry = reinterpret_cast<CudaBackendEntry>(dlsym(library, kCudaBackendEntry));
  if (entry == nullptr) {
    fail<DeviceError>("CUDA: {} is of another version of zerorun", file.string());
  }
  const std::unique_ptr<std::shared_ptr<CudaBackend>> backend(entry());
  return *backend;
}

}  // namespace

std::string find_cuda_library(std::string_view name) {
  const fs::path here = own_directory();
  constexpr auto kFolders = std::to_array<std::string_view>(
      {".", "../lib", "../" ZERORUN_LIBDIR, "../../lib", "../../" ZERORUN_LIBDIR, "../../.."});
  for (const std::string_view folder : kFolders) {
    const fs::path file = (here / folder / name).lexically_normal();
    std::error_code error;
    if (fs::exists(file, error)) return file.string();
  }
  fail<DeviceError>(
      "CUDA: {} is missing beside {} and in the lib folders near it; install zerorun "
      "again, or build it where nvcc is",
      name, here.string());
}

std::shared_ptr<CudaBackend> open_cuda_backend() {
  if (ZERORUN_HAVE_CUDA && dlopen(kDriver, kFlags) == nullptr) {
    fail<DeviceError>("CUDA: NVIDIA's driver is not installed ({})", last_dl_error());
  }
  std::shared_ptr<CudaBackend> backend = load_backend();
  if (backend->device_count() == 0) {
    fail<DeviceError>("CUDA: no GPU is visible: {}", backend->why_no_device());
  }
  return backend;
}

std::shared_ptr<Device> make_cuda_device(const CudaDeviceOptions& options) {
  return open_cuda_backend()->make_device(options);
}

std::vector<std::string> describe_cuda() {
  std::vector<std::string> lines;
  if (ZERORUN_HAVE_CUDA) lines.emplace_back("backend compiled by nvcc " ZERORUN_CUDA_BUILD);
  try {
    for (std::string& line : load_backend()->report()) lines.push_back(std::move(line));
  } catch (const DeviceError& error) {
    constexpr std::string_view kPrefix = "CUDA: ";  // the line's name says it already
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

bool cuda_is_available() { return why_no_cuda().empty(); }

std::shared_ptr<Device> make_device(Accelerator accelerator) {
  const bool cuda = accelerator == Accelerator::cuda ||
                    (accelerator == Accelerator::automatic && cuda_is_available());
  return cuda ? make_cuda_device() : make_cpu_device();
}

}  // namespace zerorun
