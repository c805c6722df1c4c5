#include "os/cgroup.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

namespace zerorun {

namespace {

// The value after `key` in a file of "key value" lines.
std::optional<int64_t> read_field(const std::filesystem::path& path, std::string_view key) {
  std::ifstream file(path);
  std::string name;
  int64_t value = 0;
  while (file >> name >> value) {
    if (name == key) return value;
  }
  return std::nullopt;
}

// The number a file consists of; "max" and what is no number give nothing.
std::optional<int64_t> read_number(const std::filesystem::path& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// A container sees its group mounted as the root, whatever path the kernel names.
std::filesystem::path group_directory(const std::filesystem::path& mount,
                                      const std::string& group) {
  const auto relative = std::filesystem::path(group).relative_path();
  std::error_code error;
  return std::filesystem::is_directory(mount / relative, error) ? mount / relative : mount;
}

}  // namespace

// /proc/self/cgroup has one line per hierarchy: "ID:CONTROLLERS:PATH", with ID 0 and no controllers
// for version 2 (cgroups(7)).
ControlGroup::ControlGroup(std::filesystem::path root) : root_(std::move(root)) {
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
  if (const auto kills = read_field(unified_ / "memory.events", "oom_kill")) return kills;
  if (const auto kills = read_field(memory_ / "memory.oom_control", "oom_kill")) return kills;
  return read_field(root_ / "proc/vmstat", "oom_kill");
}

std::optional<int64_t> ControlGroup::memory_limit() const {
  if (const auto limit = read_number(unified_ / "memory.max")) return limit;
  const auto limit = read_number(memory_ / "memory.limit_in_bytes");
  // Version 1 says "no limit" with a number near 2^63.
  if (limit && *limit < int64_t{1} << 60) return limit;
  return std::nullopt;
}

std::optional<int64_t> ControlGroup::memory_use() const {
  if (const auto use = read_number(unified_ / "memory.current")) {
    return *use - read_field(unified_ / "memory.stat", "inactive_file").value_or(0);
  }
  if (const auto use = read_number(memory_ / "memory.usage_in_bytes")) {
    return *use - read_field(memory_ / "memory.stat", "total_inactive_file").value_or(0);
  }
  return std::nullopt;
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
