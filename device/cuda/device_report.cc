#include "device/cuda/device_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>

#include "device/cuda/cuda_error.h"
#include "device/memory_ledger.h"

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

std::string describe_device(int index) {
  const cudaDeviceProp properties = properties_of(index);
  return fmt::format("cuda:{}: {}, compute capability {}.{}, {}, {} multiprocessors, {}", index,
                     properties.name, properties.major, properties.minor,
                     format_bytes(properties.totalGlobalMem), properties.multiProcessorCount,
                     cuda_device_identity(index));
}

// Which devices read each other's memory directly: NVLink, or PCIe through one switch.
std::string describe_peers(int index, int count) {
  std::vector<std::string> peers;
  for (int peer = 0; peer < count; ++peer) {
    int reaches = 0;
    if (peer != index && cudaDeviceCanAccessPeer(&reaches, index, peer) == cudaSuccess &&
        reaches != 0) {
      peers.push_back(fmt::format("cuda:{}", peer));
    }
  }
  return fmt::format("cuda:{} reads memory of: {}", index,
                     peers.empty() ? "none" : fmt::format("{}", fmt::join(peers, ", ")));
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
    return fmt::format("{} ({})", cudaGetErrorString(result), cudaGetErrorName(result));
  }
  return count > 0 ? "" : "CUDA_VISIBLE_DEVICES hides them all, or there is none";
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
  int driver = 0;
  int runtime = 0;
  check_cuda(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check_cuda(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  std::vector<std::string> lines;
  lines.push_back(fmt::format("driver for CUDA {}, built with CUDA {}",
                              driver == 0 ? "(none)" : format_version(driver),
                              format_version(runtime)));
  const int count = visible_cuda_devices();
  for (int index = 0; index < count; ++index) lines.push_back(describe_device(index));
  for (int index = 0; count > 1 && index < count; ++index) {
    lines.push_back(describe_peers(index, count));
  }
  if (count == 0) lines.push_back("no GPU is visible: " + why_no_cuda_device());
  return lines;
}

}  // namespace zerorun
