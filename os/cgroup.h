#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace zerorun {

// What the kernel's accounting says about the control group this process runs in. Both versions of
// the interface are read; `root` replaces "/" in tests.
class ControlGroup {
 public:
  explicit ControlGroup(std::filesystem::path root = "/");

  // Processes the out-of-memory killer has ended so far: in this group if that is known, else on
  // the whole machine.
  std::optional<int64_t> oom_kills() const;
  // Bytes this group may use.
  std::optional<int64_t> memory_limit() const;
  // Bytes this group uses now, the cache of files that can be dropped left out.
  std::optional<int64_t> memory_use() const;
  // CPUs' worth of time this group may use.
  std::optional<double> cpu_quota() const;

 private:
  std::filesystem::path root_;
  std::filesystem::path unified_;  // version 2
  std::filesystem::path memory_;   // version 1
  std::filesystem::path cpu_;      // version 1
};

}  // namespace zerorun
