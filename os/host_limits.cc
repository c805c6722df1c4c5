#include "os/host_limits.h"

#include <unistd.h>

#include <algorithm>
#include <limits>

#include "os/cgroup.h"
#include "os/text_file.h"

namespace zerorun {

namespace {

constexpr uint64_t kIpcLock = uint64_t{1} << 14;  // a process with this capability may lock all

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

}  // namespace zerorun
