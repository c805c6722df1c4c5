#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "os/host_limits.h"

namespace zerorun {

// Throws ConfigError when `limits` do not leave `nbytes` for each of `ranks` ranks on this host,
// naming the limit, the bytes that are missing, and `purpose`.
void check_host_memory(const HostLimits& limits, size_t nbytes, int ranks,
                       std::string_view purpose);
// Advice for the user when `limits` do not let each of `ranks` ranks lock `nbytes`; empty when they
// do.
std::string locking_advice(const HostLimits& limits, size_t nbytes, int ranks);

}  // namespace zerorun
