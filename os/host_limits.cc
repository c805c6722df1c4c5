#include "os/host_limits.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>

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

// True when the process has CAP_IPC_LOCK, with which locking has no limit:
// "CapEff:   000001fffeffffff".
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

// The soft limit: "Max locked memory         8388608              8388608              bytes".
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
  limits.available = read_available(root / "proc/meminfo");
  limits.group_available = ControlGroup(root).memory_available();
  if (!may_lock_all(root / "proc/self/status")) {
    limits.lockable = read_lockable(root / "proc/self/limits");
  }
  return limits;
}

}  // namespace zerorun
