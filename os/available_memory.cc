#include "os/available_memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>

namespace zerorun {

namespace {

constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

size_t host_available() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kKey = "MemAvailable:";
    if (!line.starts_with(kKey)) continue;
    size_t kibibytes = 0;
    if (std::istringstream(line.substr(kKey.size())) >> kibibytes) return kibibytes * 1024;
  }
  return kUnlimited;
}

std::optional<size_t> read_number(const std::filesystem::path& path) {
  std::ifstream file(path);
  size_t number = 0;
  if (file >> number) return number;  // "max" is no number
  return std::nullopt;
}

// What the limits of this process's control group and the groups above it leave (cgroup v2).
size_t control_groups_available() {
  constexpr std::string_view kUnified = "0::/";
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line) && !line.starts_with(kUnified)) {
  }
  if (!line.starts_with(kUnified)) return kUnlimited;
  const std::filesystem::path root = "/sys/fs/cgroup";
  size_t available = kUnlimited;
  for (std::filesystem::path group = root / line.substr(kUnified.size());;
       group = group.parent_path()) {
    const std::optional<size_t> limit = read_number(group / "memory.max");
    const std::optional<size_t> used = read_number(group / "memory.current");
    if (limit && used) available = std::min(available, *limit - std::min(*limit, *used));
    if (group == root || !group.has_relative_path()) return available;
  }
}

}  // namespace

size_t available_memory() { return std::min(host_available(), control_groups_available()); }

}  // namespace zerorun
