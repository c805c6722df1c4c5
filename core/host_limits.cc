#include "core/host_limits.h"

#include <fstream>
#include <limits>
#include <string>

#include "core/cgroup.h"
#include "core/check.h"

namespace zerorun {

namespace {

// "MemAvailable:   24000000 kB"
std::optional<int64_t> read_available(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string name;
  int64_t kib = 0;
  while (file >> name >> kib) {
    if (name == "MemAvailable:") return kib * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

}  // namespace

HostLimits host_limits(const std::filesystem::path& root) {
  HostLimits limits;
  limits.available = read_available(root / "proc/meminfo");
  const ControlGroup group(root);
  const auto limit = group.memory_limit();
  const auto use = group.memory_use();
  if (limit && use) limits.group_available = *limit - *use;
  return limits;
}

void check_host_memory(const HostLimits& limits, size_t nbytes, int ranks,
                       std::string_view purpose) {
  constexpr double kGiB = 1 << 30;
  const double needed = static_cast<double>(nbytes) * ranks;
  const auto check = [&](const std::optional<int64_t>& available, std::string_view where) {
    if (!available || needed <= static_cast<double>(*available)) return;
    fail<ConfigError>(
        "{} needs {:.2f} GiB of host memory for each of {} ranks, {:.2f} GiB in all; {} has {:.2f} "
        "GiB left. Use more hosts, offload a smaller part (offload_optimizer.ratio), offload to "
        "\"nvme\", or give the job more memory",
        purpose, static_cast<double>(nbytes) / kGiB, ranks, needed / kGiB, where,
        static_cast<double>(*available) / kGiB);
  };
  check(limits.group_available, "the control group");
  check(limits.available, "the machine");
}

}  // namespace zerorun
