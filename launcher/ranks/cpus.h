#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zerorun {

// The CPUs that this process may use, by physical core, and their division among the ranks of the
// host.

struct Core {
  std::vector<int> cpus;  // hardware threads, ascending
  int node = 0;           // NUMA node
};

// Parses a list of CPUs: "0-3,8" -> {0, 1, 2, 3, 8}. Ignores malformed parts.
std::vector<int> parse_cpu_list(std::string_view text);
std::string format_cpu_list(std::span<const int> cpus);

// The CPUs in this process's affinity mask.
std::vector<int> allowed_cpus();
// Groups `allowed` by physical core, according to the kernel, sorted by NUMA node and then by CPU.
// A CPU that the kernel does not describe is a core of its own.
std::vector<Core> group_by_core(std::span<const int> allowed,
                                const std::filesystem::path& sysfs = "/sys/devices/system");
int count_nodes(std::span<const Core> cores);
int count_cpus(std::span<const Core> cores);

// The CPUs of one rank.
struct CpuShare {
  std::vector<int> cpus;  // CPUs to bind to; empty = no binding
  int threads = 1;        // one per physical core
};

// Divides cores equally among the ranks. A rank gets neighbouring cores, preferably of the NUMA
// node of its device. Ranks get whole cores if there are enough, else hardware threads; with fewer
// CPUs than ranks, nothing is bound. `nodes`: by rank, the NUMA node of its device if known.
std::vector<CpuShare> divide_cpus(std::span<const Core> cores,
                                  std::span<const std::optional<int>> nodes);

// The NUMA node of each GPU, according to the driver and the kernel; nullopt if unknown. GPUs are
// named as in CUDA_VISIBLE_DEVICES: by number or by UUID.
std::vector<std::optional<int>> gpu_nodes(std::span<const std::string> gpus,
                                          const std::filesystem::path& root = "/");

}  // namespace zerorun
