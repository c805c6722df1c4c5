#pragma once

#include <string>

#include "zerorun/communicator.h"

namespace zerorun {

// The address of this host at which ranks of other hosts reach it: that of the interface, or the
// one, that the options or GLOO_SOCKET_IFNAME say, or else what leads to options.master_addr;
// loopback when that is not set either. Throws CommError when this host does not have it.
std::string choose_address(const CommunicatorOptions& options);

}  // namespace zerorun
