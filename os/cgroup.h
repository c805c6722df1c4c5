#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace zerorun {

// The control group in which this process runs, as the kernel accounts for it. Both versions of the
// interface are read; `root` replaces "/" in tests.
class ControlGroup {
 public:
  explicit ControlGroup(std::filesystem::path root = "/");

  // The number of processes that the out-of-memory killer has ended so far: in this group if that
  // is known, else on the whole machine.
  std::optional<int64_t> oom_kills() const;
  // The smallest limit of memory, in bytes, of this group and the groups that hold it.
  std::optional<int64_t> memory_limit() const;
  // Bytes that these limits leave, the smallest of all: limit - use, where the cache of files does
  // not count as used, because the kernel drops it before it refuses memory.
  std::optional<int64_t> memory_available() const;
  // The number of CPUs whose time this group may use.
  std::optional<double> cpu_quota() const;

 private:
  struct MemoryUse {
    int64_t limit = 0;
    int64_t available = 0;
  };
  // One entry for each group with a limit, from this process's own up to the root.
  std::vector<MemoryUse> memory_uses() const;

  std::filesystem::path root_;
  std::filesystem::path unified_;  // version 2
  std::filesystem::path memory_;   // version 1
  std::filesystem::path cpu_;      // version 1
};

}  // namespace zerorun
