#pragma once

#include <cstdint>
#include <string>

#include "os/socket.h"

namespace zerorun {

// Reserves the port on which rank 0 will meet its peers, `port` or a free one for 0: the launcher
// hands the socket to rank 0, so no other program can have the port meanwhile. All ranks run on
// this host, so the socket is of the loopback interface; `host` must be an address of this machine,
// since PyTorch meets there. Throws ConfigError when it is not, or the port is busy.
Listener reserve_master_port(const std::string& host, uint16_t port);

}  // namespace zerorun
