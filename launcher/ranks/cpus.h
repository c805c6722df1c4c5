#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zerorun {

// The CPUs this process may use, by physical core, and their division among the ranks of the host.

struct Core {
  std::vector<int> cpus;  // hardware threads, ascending
  int node = 0;           // NUMA node
};

// "0-3,8" -> {0, 1, 2, 3, 8}. Text that is no such list gives what could be read of it.
std::vector<int> parse_cpu_list(std::string_view text);
std::string format_cpu_list(std::span<const int> cpus);

// CPUs in this process's affinity mask.
std::vector<int> allowed_cpus();
// Groups `allowed` by physical core, ordered by NUMA node and then by CPU, from the kernel's
// description; a CPU it does not describe is a core of its own.
std::vector<Core> group_by_core(std::span<const int> allowed,
                                const std::filesystem::path& sysfs = "/sys/devices/system");
int count_nodes(std::span<const Core> cores);
int count_cpus(std::span<const Core> cores);

// The CPUs of one rank.
struct CpuShare {
  std::vector<int> cpus;  // to bind to; empty = no binding
  int threads = 1;        // one per physical core
};

// Neighbouring cores go to the same rank, those of the node that it has its device on before
// others; all ranks get as many. Whole cores while there are enough, then hardware threads; without
// one CPU per rank nothing is bound. `nodes`: by rank, where it is known.
std::vector<CpuShare> divide_cpus(std::span<const Core> cores,
                                  std::span<const std::optional<int>> nodes);

}  // namespace zerorun
