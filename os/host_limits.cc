#include "os/host_limits.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "os/text_file.h"

namespace zerorun {

namespace {

constexpr uint64_t kIpcLock = uint64_t{1} << 14;  // a process with this capability may lock all

namespace fs = std::filesystem;

// The files and fields in which each version of the interface keeps a group's memory. The fields of
// memory.stat count the groups below as well.
struct Interface {
  std::string_view mount;  // below sys/fs/cgroup
  std::string_view limit;
  std::string_view use;
  const char* inactive;
  const char* active;
};
constexpr Interface kVersion2{"", "memory.max", "memory.current", "inactive_file ", "active_file "};
constexpr Interface kVersion1{"memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                              "total_inactive_file ", "total_active_file "};
// Version 1 says "no limit" with a number near 2^63.
constexpr int64_t kNoLimit = int64_t{1} << 60;

// The number on the first line that begins with `key`; nothing for "max" and other text.
std::optional<int64_t> read_number(const fs::path& path, std::string_view key = "") {
  int64_t value = 0;
  if (text_after(path, key) >> value) return value;
  return std::nullopt;
}

// A container sees its group mounted as the root, whatever path the kernel names.
fs::path group_directory(const fs::path& mount, const std::string& group) {
  const auto relative = fs::path(group).relative_path();
  std::error_code error;
  return fs::is_directory(mount / relative, error) ? mount / relative : mount;
}

}  // namespace

size_t total_memory() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

size_t HostLimits::available_bytes() const {
  constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
  const int64_t least = std::min(available.value_or(kUnknown), group_available.value_or(kUnknown));
  return static_cast<size_t>(std::max<int64_t>(least, 0));
}

HostLimits host_limits(const std::filesystem::path& root) {
  HostLimits limits;
  int64_t kib = 0;
  if (text_after(root / "proc/meminfo", "MemAvailable:") >> kib) limits.available = kib * 1024;
  limits.group_available = ControlGroup(root).memory_available();
  uint64_t capabilities = 0;
  text_after(root / "proc/self/status", "CapEff:") >> std::hex >> capabilities;
  int64_t soft_limit = 0;  // "unlimited" is no number
  if ((capabilities & kIpcLock) == 0 &&
      text_after(root / "proc/self/limits", "Max locked memory") >> soft_limit) {
    limits.lockable = soft_limit;
  }
  return limits;
}

// /proc/self/cgroup has one line per hierarchy: "ID:CONTROLLERS:PATH", with ID 0 and no controllers
// for version 2 (cgroups(7)).
ControlGroup::ControlGroup(fs::path root) : root_(std::move(root)) {
  const auto mounts = root_ / "sys/fs/cgroup";
  std::ifstream file(root_ / "proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") {
      unified_ = group_directory(mounts, path);
    } else if (controllers.find(",memory,") != std::string::npos) {
      memory_ = group_directory(mounts / "memory", path);
    } else if (controllers.find(",cpu,") != std::string::npos) {
      cpu_ = group_directory(mounts / "cpu", path);
    }
  }
}

std::optional<int64_t> ControlGroup::oom_kills() const {
  if (const auto kills = read_number(unified_ / "memory.events", "oom_kill ")) return kills;
  if (const auto kills = read_number(memory_ / "memory.oom_control", "oom_kill ")) return kills;
  return read_number(root_ / "proc/vmstat", "oom_kill ");
}

std::vector<ControlGroup::MemoryUse> ControlGroup::memory_uses() const {
  const fs::path mounts = root_ / "sys/fs/cgroup";
  std::vector<MemoryUse> uses;
  for (const Interface& version : {kVersion2, kVersion1}) {
    const fs::path mount = mounts / version.mount;
    fs::path group = version.mount.empty() ? unified_ : memory_;
    for (; !group.empty(); group = group.parent_path()) {
      const auto limit = read_number(group / version.limit);
      if (limit && *limit < kNoLimit) {
        const int64_t use = read_number(group / version.use).value_or(0);
        const int64_t cache = read_number(group / "memory.stat", version.inactive).value_or(0) +
                              read_number(group / "memory.stat", version.active).value_or(0);
        const int64_t used = std::max<int64_t>(use - cache, 0);
        uses.push_back({*limit, std::max<int64_t>(*limit - used, 0)});
      }
      if (group == mounts || group == mount) break;
    }
  }
  return uses;
}

std::optional<int64_t> ControlGroup::least(int64_t MemoryUse::*field) const {
  std::optional<int64_t> least;
  for (const MemoryUse& use : memory_uses()) {
    least = std::min(least.value_or(use.*field), use.*field);
  }
  return least;
}

std::optional<double> ControlGroup::cpu_quota() const {
  int64_t quota = 0;
  int64_t period = 0;
  std::ifstream file(unified_ / "cpu.max");
  if (!(file >> quota >> period)) {
    quota = read_number(cpu_ / "cpu.cfs_quota_us").value_or(-1);
    period = read_number(cpu_ / "cpu.cfs_period_us").value_or(0);
  }
  if (quota <= 0 || period <= 0) return std::nullopt;
  return static_cast<double>(quota) / static_cast<double>(period);
}

}  // namespace zerorun
