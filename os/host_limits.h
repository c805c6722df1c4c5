#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace zerorun {

// Memory that this process can still allocate. All other code gets the memory of a host from here.
struct HostLimits {
  std::optional<int64_t> available{};        // free on the machine without swapping
  std::optional<int64_t> group_available{};  // left in its control group and the ancestors of that
  // Limit of locked memory (`ulimit -l`), if there is one. Registered buffers of io_uring count
  // towards it; memory pinned by CUDA does not.
  std::optional<int64_t> lockable{};

  // Returns the smaller of `available` and `group_available`, or the largest size_t if neither is
  // known.
  size_t available_bytes() const;
};
// The memory that the machine has.
size_t total_memory();
// `root` replaces "/" in tests.
HostLimits host_limits(const std::filesystem::path& root = "/");

// Reads the limits of the control group in which this process runs. Supports cgroup versions 1 and
// 2. `root` replaces "/" in tests.
class ControlGroup {
 public:
  explicit ControlGroup(std::filesystem::path root = "/");

  // Returns how many processes the out-of-memory killer has killed so far: in this group if that is
  // known, else on the machine.
  std::optional<int64_t> oom_kills() const;
  // Returns the smallest memory limit in bytes of this group and its ancestors.
  std::optional<int64_t> memory_limit() const { return least(&MemoryUse::limit); }
  // Returns the smallest number of bytes that is left below these limits. The page cache does not
  // count as used, because the kernel drops it before an allocation fails.
  std::optional<int64_t> memory_available() const { return least(&MemoryUse::available); }
  // Returns how many CPUs' worth of time this group may use.
  std::optional<double> cpu_quota() const;

 private:
  struct MemoryUse {
    int64_t limit = 0;
    int64_t available = 0;
  };
  // Returns one entry for each group with a limit, from that of this process up to the root.
  std::vector<MemoryUse> memory_uses() const;
  std::optional<int64_t> least(int64_t MemoryUse::*field) const;

  std::filesystem::path root_;
  std::filesystem::path unified_;  // version 2
  std::filesystem::path memory_;   // version 1
  std::filesystem::path cpu_;      // version 1
};

}  // namespace zerorun
