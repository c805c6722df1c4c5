#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>

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

}  // namespace zerorun
