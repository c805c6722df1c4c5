#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace zerorun {

// Memory that this process can still get.
struct HostLimits {
  std::optional<int64_t> available;        // on the machine, without swapping
  std::optional<int64_t> group_available;  // in its control group
};
// `root` replaces "/" in tests.
HostLimits host_limits(const std::filesystem::path& root = "/");

// Throws ConfigError when `limits` do not leave `nbytes` for each of `ranks` ranks on this host,
// naming the limit, what is missing, and `purpose`.
void check_host_memory(const HostLimits& limits, size_t nbytes, int ranks,
                       std::string_view purpose);

}  // namespace zerorun
