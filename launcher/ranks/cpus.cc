#include "launcher/ranks/cpus.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <system_error>

#include "core/parse_number.h"

namespace zerorun {

namespace {

// No machine has more; bounds what a damaged list can make us allocate.
constexpr int kMaxCpu = 1 << 16;

std::string read_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// CPU -> NUMA node.
std::map<int, int> read_nodes(const std::filesystem::path& sysfs) {
  std::map<int, int> node_of;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(sysfs / "node", error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("node")) continue;
    const std::optional<int> node = parse_number(std::string_view(name).substr(4));
    if (!node) continue;
    for (const int cpu : parse_cpu_list(read_line(entry.path() / "cpulist"))) node_of[cpu] = *node;
  }
  return node_of;
}

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
  std::ranges::sort(gpus, [](const Gpu& a, const Gpu& b) { return a.address < b.address; });
  return gpus;
}

const Gpu* find_gpu(const std::vector<Gpu>& gpus, const std::string& name) {
  if (const std::optional<size_t> index = parse_number<size_t>(name)) {
    return *index < gpus.size() ? &gpus[*index] : nullptr;
  }
  const auto found = std::ranges::find_if(gpus, [&](const Gpu& gpu) {
    return !gpu.uuid.empty() && gpu.uuid.starts_with(name);  // as CUDA, which takes beginnings
  });
  return found == gpus.end() ? nullptr : &*found;
}

}  // namespace

std::vector<int> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  while (!text.empty()) {
    const std::optional<int> first = take_number<int>(text);
    if (!first || *first < 0 || *first > kMaxCpu) break;
    std::optional<int> last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      last = take_number<int>(text);
      if (!last || *last > kMaxCpu) break;
    }
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
    if (text.starts_with(',')) text.remove_prefix(1);
  }
  return cpus;
}

std::string format_cpu_list(std::span<const int> cpus) {
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", cpus[i]);
    if (last > i) text += fmt::format("-{}", cpus[last]);
    i = last + 1;
  }
  return text;
}

std::vector<int> allowed_cpus() {
  // The kernel refuses a mask smaller than its own; grow until it fits.
  for (int capacity = CPU_SETSIZE; capacity <= kMaxCpu; capacity *= 2) {
    std::vector<cpu_set_t> mask(static_cast<size_t>(capacity / CPU_SETSIZE));
    const size_t nbytes = mask.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, nbytes, mask.data()) != 0) continue;
    std::vector<int> cpus;
    for (int cpu = 0; cpu < capacity; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), nbytes, mask.data())) cpus.push_back(cpu);
    }
    return cpus;
  }
  return {0};
}

std::vector<Core> group_by_core(std::span<const int> allowed, const std::filesystem::path& sysfs) {
  const std::map<int, int> node_of = read_nodes(sysfs);
  const std::set<int> wanted(allowed.begin(), allowed.end());
  std::set<int> grouped;
  std::vector<Core> cores;
  for (const int cpu : wanted) {
    if (grouped.contains(cpu)) continue;
    const auto topology = sysfs / "cpu" / fmt::format("cpu{}", cpu) / "topology";
    Core core;
    core.cpus.push_back(cpu);
    for (const int sibling : parse_cpu_list(read_line(topology / "thread_siblings_list"))) {
      if (sibling != cpu && wanted.contains(sibling) && !grouped.contains(sibling)) {
        core.cpus.push_back(sibling);
      }
    }
    std::ranges::sort(core.cpus);
    grouped.insert(core.cpus.begin(), core.cpus.end());
    const auto node = node_of.find(cpu);
    if (node != node_of.end()) core.node = node->second;
    cores.push_back(std::move(core));
  }
  std::ranges::stable_sort(cores, [](const Core& a, const Core& b) { return a.node < b.node; });
  return cores;
}

int count_nodes(std::span<const Core> cores) {
  std::set<int> nodes;
  for (const Core& core : cores) nodes.insert(core.node);
  return std::max<int>(1, static_cast<int>(nodes.size()));
}

int count_cpus(std::span<const Core> cores) {
  size_t count = 0;
  for (const Core& core : cores) count += core.cpus.size();
  return static_cast<int>(count);
}

std::vector<CpuShare> divide_cpus(std::span<const Core> cores,
                                  std::span<const std::optional<int>> nodes) {
  struct Unit {
    std::vector<int> cpus;
    int node = 0;
    bool taken = false;
  };
  const size_t ranks = nodes.size();
  std::vector<CpuShare> shares(ranks);
  const bool whole_cores = cores.size() >= ranks;
  if (!whole_cores && count_cpus(cores) < static_cast<int>(ranks)) return shares;
  std::vector<Unit> units;
  for (const Core& core : cores) {
    if (whole_cores) {
      units.push_back({core.cpus, core.node});
    } else {
      for (const int cpu : core.cpus) units.push_back({{cpu}, core.node});
    }
  }
  for (CpuShare& share : shares) share.threads = 0;
  const auto take = [&](size_t rank, std::optional<int> node) {
    CpuShare& share = shares[rank];
    const auto wanted =
        static_cast<int>(units.size() * (rank + 1) / ranks - units.size() * rank / ranks);
    for (Unit& unit : units) {
      if (share.threads == wanted) break;
      if (unit.taken || unit.node != node.value_or(unit.node)) continue;
      unit.taken = true;
      share.cpus.insert(share.cpus.end(), unit.cpus.begin(), unit.cpus.end());
      ++share.threads;
    }
  };
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (nodes[rank]) take(rank, nodes[rank]);
  }
  for (size_t rank = 0; rank < ranks; ++rank) take(rank, std::nullopt);
  for (CpuShare& share : shares) std::ranges::sort(share.cpus);
  return shares;
}

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
