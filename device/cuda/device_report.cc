#include "device/cuda/device_report.h"

#include <fmt/format.h>

#include <array>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "core/format_bytes.h"
#include "device/cuda/libraries/nvml.h"
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

constexpr const char* kUnknown = "?";

// The words of `nvidia-smi topo`, by GpuPath.
struct Word {
  const char* word;
  const char* meaning;
};
constexpr std::array<Word, 6> kWords = {{
    {"NV", "NV and a number: so many NVLinks"},
    {"PIX", "one PCIe switch"},
    {"PXB", "several PCIe switches"},
    {"PHB", "a PCIe host bridge"},
    {"NODE", "the PCIe host bridges of a NUMA node"},
    {"SYS", "the connection between NUMA nodes"},
}};

bool reads_memory_of(int gpu, int peer) {
  int reads = 0;
  if (cudaDeviceCanAccessPeer(&reads, gpu, peer) == cudaSuccess) return reads != 0;
  cudaGetLastError();  // the next call shall not meet it
  return false;
}

// How the visible GPUs, at these addresses in their order, reach each other: lines of a table, and
// what its words mean.
class LinkTable {
 public:
  explicit LinkTable(std::span<const PciAddress> gpus) : gpus_(gpus) {
    try {
      nvml_ = open_nvml();
    } catch (const DeviceError& error) {
      meanings_[kUnknown] = fmt::format("?: unknown: {}", error.what());
    }
  }

  std::vector<std::string> lines() {
    std::string header = fmt::format("{:<8}", "links");
    const int count = static_cast<int>(gpus_.size());
    for (int peer = 0; peer < count; ++peer) header += fmt::format("cuda:{:<4}", peer);
    std::vector<std::string> lines = {header};
    for (int gpu = 0; gpu < count; ++gpu) {
      std::string line = fmt::format("cuda:{:<3}", gpu);
      for (int peer = 0; peer < count; ++peer) line += fmt::format("{:<9}", cell(gpu, peer));
      lines.push_back(line);
    }
    for (const auto& [word, meaning] : meanings_) lines.push_back(meaning);
    return lines;
  }

 private:
  std::string cell(int gpu, int peer) {
    if (gpu == peer) return "-";
    std::string text = word(gpu, peer);
    if (!reads_memory_of(gpu, peer)) {
      meanings_["!"] = "!: no peer access, so copies go through the host";
      text += '!';
    }
    return text;
  }

  std::string word(int gpu, int peer) {
    if (!nvml_) return kUnknown;
    try {
      const GpuLink link =
          nvml_->link(gpus_[static_cast<size_t>(gpu)], gpus_[static_cast<size_t>(peer)]);
      const auto& [word, meaning] = kWords[static_cast<size_t>(link.path)];
      const bool is_nvlink = link.path == GpuPath::nvlink;
      meanings_[word] = is_nvlink ? meaning : fmt::format("{}: through {}", word, meaning);
      return is_nvlink ? fmt::format("{}{}", word, link.nvlinks) : word;
    } catch (const DeviceError& error) {
      meanings_[kUnknown] = fmt::format("?: unknown: {}", error.what());
      return kUnknown;
    }
  }

  const std::span<const PciAddress> gpus_;
  std::unique_ptr<Nvml> nvml_;
  std::map<std::string, std::string> meanings_;  // of the words used
};

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
  if (count < 2 || std::ssize(addresses) < count) return lines;
  for (std::string& line : LinkTable(addresses).lines()) lines.push_back(std::move(line));
  return lines;
}

}  // namespace zerorun
