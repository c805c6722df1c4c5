#pragma once

#include <string>

#include "zerorun/communicator.h"

namespace zerorun {

// The interface, or the address of this host, at which ranks of other hosts reach it: what the
// options or GLOO_SOCKET_IFNAME say, or else what leads to options.master_addr; loopback when that
// is not set either.
std::string choose_interface(const CommunicatorOptions& options);

}  // namespace zerorun
