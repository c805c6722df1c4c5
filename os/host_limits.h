#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>

namespace zerorun {

// Memory that this process can still get. The one reader of it: whoever asks for the memory of a
// host asks here.
struct HostLimits {
  std::optional<int64_t> available{};        // on the machine, without swapping
  std::optional<int64_t> group_available{};  // in its control group and those that hold it
  // The limit of locked memory (`ulimit -l`) for this user's processes, where there is one: buffers
  // that io_uring keeps mapped count, memory that CUDA pins does not.
  std::optional<int64_t> lockable{};

  // The smaller of the two that are known; the largest number when none is.
  size_t available_bytes() const;
};
// `root` replaces "/" in tests.
HostLimits host_limits(const std::filesystem::path& root = "/");

}  // namespace zerorun
