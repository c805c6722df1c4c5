#include "device/cuda/libraries/gpu_links.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <array>
#include <map>
#include <memory>

#include "zerorun/error.h"

namespace zerorun {

namespace {

constexpr const char* kUnknown = "?";

// By GpuPath.
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

std::vector<std::string> describe_gpu_links(std::span<const PciAddress> gpus) {
  return gpus.size() < 2 ? std::vector<std::string>() : LinkTable(gpus).lines();
}

}  // namespace zerorun
