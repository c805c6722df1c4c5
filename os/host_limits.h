#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace zerorun {

// Memory that this process can still get.
struct HostLimits {
  std::optional<int64_t> available;        // on the machine, without swapping
  std::optional<int64_t> group_available;  // in its control group
  // That the kernel locks for this user's processes (`ulimit -l`), where that has a limit: the
  // buffers that io_uring keeps mapped count, what CUDA pins does not.
  std::optional<int64_t> lockable;
};
// `root` replaces "/" in tests.
HostLimits host_limits(const std::filesystem::path& root = "/");

// Throws ConfigError when `limits` do not leave `nbytes` for each of `ranks` ranks on this host,
// naming the limit, what is missing, and `purpose`.
void check_host_memory(const HostLimits& limits, size_t nbytes, int ranks,
                       std::string_view purpose);
// What to tell the user when `limits` do not let each of `ranks` ranks lock `nbytes`; empty when
// they do.
std::string locking_advice(const HostLimits& limits, size_t nbytes, int ranks);

}  // namespace zerorun
