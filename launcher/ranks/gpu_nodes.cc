#include "launcher/ranks/gpu_nodes.h"

#include <algorithm>
#include <fstream>
#include <system_error>

#include "core/parse_number.h"

namespace zerorun {

namespace {

namespace fs = std::filesystem;

struct Gpu {
  std::string address;  // on the PCI bus, "0000:3b:00.0"
  std::string uuid;
  std::optional<int> node;
};

// "GPU UUID: 	 GPU-8d9e..."
std::string read_uuid(const fs::path& information) {
  std::ifstream file(information);
  for (std::string line; std::getline(file, line);) {
    const size_t value = line.find("GPU-");
    if (line.starts_with("GPU UUID") && value != std::string::npos) return line.substr(value);
  }
  return {};
}

std::optional<int> read_node(const fs::path& path) {
  std::ifstream file(path);
  int node = -1;  // the kernel's word for unknown
  file >> node;
  return node < 0 ? std::nullopt : std::optional(node);
}

// In the order of their addresses, by which CUDA numbers GPUs of one kind.
std::vector<Gpu> read_gpus(const fs::path& root) {
  std::vector<Gpu> gpus;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root / "proc/driver/nvidia/gpus", error)) {
    Gpu gpu{.address = entry.path().filename().string(),
            .uuid = read_uuid(entry.path() / "information")};
    gpu.node = read_node(root / "sys/bus/pci/devices" / gpu.address / "numa_node");
    gpus.push_back(std::move(gpu));
  }
  std::sort(gpus.begin(), gpus.end(),
            [](const Gpu& a, const Gpu& b) { return a.address < b.address; });
  return gpus;
}

const Gpu* find_gpu(const std::vector<Gpu>& gpus, const std::string& name) {
  if (const std::optional<size_t> index = parse_number<size_t>(name)) {
    return *index < gpus.size() ? &gpus[*index] : nullptr;
  }
  const auto found = std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& gpu) {
    return !gpu.uuid.empty() && gpu.uuid.starts_with(name);  // as CUDA, which takes beginnings
  });
  return found == gpus.end() ? nullptr : &*found;
}

}  // namespace

std::vector<std::optional<int>> gpu_nodes(std::span<const std::string> gpus, const fs::path& root) {
  const std::vector<Gpu> present = read_gpus(root);
  std::vector<std::optional<int>> nodes;
  for (const std::string& name : gpus) {
    const Gpu* const gpu = find_gpu(present, name);
    nodes.push_back(gpu == nullptr ? std::nullopt : gpu->node);
  }
  return nodes;
}

}  // namespace zerorun
