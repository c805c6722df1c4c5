#include "os/host_limits.h"

#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "core/check.h"
#include "os/cgroup.h"

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

// "CapEff:   000001fffeffffff": with this one, locking has no limit.
bool may_lock_all(const std::filesystem::path& status) {
  constexpr uint64_t kIpcLock = uint64_t{1} << 14;
  std::ifstream file(status);
  std::string name;
  while (file >> name) {
    uint64_t capabilities = 0;
    if (name == "CapEff:") {
      file >> std::hex >> capabilities;
      return (capabilities & kIpcLock) != 0;
    }
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return false;
}

// "Max locked memory         8388608              8388608              bytes", the first of which
// holds.
std::optional<int64_t> read_lockable(const std::filesystem::path& limits) {
  constexpr std::string_view kName = "Max locked memory";
  std::ifstream file(limits);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kName)) continue;
    int64_t nbytes = 0;
    std::istringstream words(line.substr(kName.size()));
    if (words >> nbytes) return nbytes;
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
  if (!may_lock_all(root / "proc/self/status")) {
    limits.lockable = read_lockable(root / "proc/self/limits");
  }
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

std::string locking_advice(const HostLimits& limits, size_t nbytes, int ranks) {
  constexpr double kMiB = 1 << 20;
  const double needed = static_cast<double>(nbytes) * ranks;
  if (!limits.lockable || needed <= static_cast<double>(*limits.lockable)) return {};
  return fmt::format(
      "io_uring would lock {:.1f} MiB of buffers on this host, and `ulimit -l` allows {:.1f} MiB: "
      "each transfer pins its pages anew, which costs time. Raise it (`ulimit -l unlimited`, "
      "docker "
      "run --ulimit memlock=-1)",
      needed / kMiB, static_cast<double>(*limits.lockable) / kMiB);
}

}  // namespace zerorun
