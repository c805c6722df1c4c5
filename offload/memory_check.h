#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "os/host_limits.h"

namespace zerorun {

// Throws ConfigError if `limits` do not allow `nbytes` bytes for each of `ranks` ranks on this
// host. The error names the limit, the missing bytes, and `purpose`.
void check_host_memory(const HostLimits& limits, size_t nbytes, int ranks,
                       std::string_view purpose);
// Advice for the user if `limits` do not allow each of `ranks` ranks to lock `nbytes` bytes;
// otherwise empty.
std::string locking_advice(const HostLimits& limits, size_t nbytes, int ranks);

}  // namespace zerorun
