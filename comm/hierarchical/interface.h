#pragma once

#include <string>

#include "zerorun/communicator.h"

namespace zerorun {

// The IP address of this host at which ranks of other hosts connect. It is that of the interface or
// address in the options or in GLOO_SOCKET_IFNAME. If neither is set, it is the address of the
// interface that routes to options.master_addr, or loopback if that is not set either. Throws
// CommError if this host does not have the address.
std::string choose_address(const CommunicatorOptions& options);

}  // namespace zerorun
