#include "device/cuda/device_report.h"

#include <fmt/format.h>

#include <iterator>
#include <span>
#include <utility>

#include "core/format_bytes.h"
#include "device/cuda/libraries/gpu_links.h"
#include "device/cuda/runtime/cuda_error.h"

namespace zerorun {

namespace {

// 13020 as "13.2".
std::string format_version(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

cudaDeviceProp properties_of(int index) {
  cudaDeviceProp properties = {};
  check_cuda(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  return properties;
}

PciAddress address_of(const cudaDeviceProp& properties) {
  return {static_cast<unsigned>(properties.pciDomainID), static_cast<unsigned>(properties.pciBusID),
          static_cast<unsigned>(properties.pciDeviceID)};
}

std::string describe_device(int index) {
  const cudaDeviceProp properties = properties_of(index);
  return fmt::format("cuda:{}: {}, compute capability {}.{}, {}, {} multiprocessors, {}", index,
                     properties.name, properties.major, properties.minor,
                     format_bytes(properties.totalGlobalMem), properties.multiProcessorCount,
                     cuda_device_identity(index));
}

std::string describe_driver() {
  int driver = 0;  // also where there is none
  int runtime = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) cudaGetLastError();
  if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) cudaGetLastError();
  if (driver == 0) {
    return fmt::format("driver: missing: install NVIDIA's driver for CUDA {} or later",
                       runtime / 1000);
  }
  std::string version;
  try {
    version = open_nvml()->driver_version();
  } catch (const DeviceError& error) {
    version = fmt::format("of unknown version ({})", error.what());
  }
  return fmt::format("driver {} for CUDA {}, built with CUDA {}", version, format_version(driver),
                     format_version(runtime));
}

}  // namespace

int visible_cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

std::string why_no_cuda_device() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result != cudaSuccess) {
    cudaGetLastError();
    return fmt::format("{} ({}; {})", cudaGetErrorString(result), cudaGetErrorName(result),
                       describe_driver());
  }
  return count > 0 ? "" : "CUDA_VISIBLE_DEVICES hides them all, or there is none";
}

bool cuda_driver_fails() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result != cudaSuccess) cudaGetLastError();
  return result != cudaSuccess && result != cudaErrorNoDevice;
}

std::string cuda_device_identity(int index) {
  const cudaDeviceProp properties = properties_of(index);
  const std::span<const char> uuid(properties.uuid.bytes);
  std::string text = fmt::format("PCI {:04x}:{:02x}:{:02x}, UUID ", properties.pciDomainID,
                                 properties.pciBusID, properties.pciDeviceID);
  for (const char byte : uuid) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

std::vector<std::string> cuda_report() {
  std::vector<std::string> lines = {describe_driver()};
  const int count = visible_cuda_devices();
  if (count == 0) lines.push_back("GPU: missing: none is visible: " + why_no_cuda_device());
  std::vector<PciAddress> addresses;
  for (int index = 0; index < count; ++index) {
    try {
      lines.push_back(describe_device(index));
      addresses.push_back(address_of(properties_of(index)));
    } catch (const DeviceError& error) {  // the others may do
      lines.push_back(fmt::format("cuda:{}: cannot be used: {}", index, error.what()));
    }
  }
  if (std::ssize(addresses) < count) return lines;
  for (std::string& line : describe_gpu_links(addresses)) lines.push_back(std::move(line));
  return lines;
}

}  // namespace zerorun
