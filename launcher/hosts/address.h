#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "os/socket.h"

namespace zerorun {

inline constexpr int64_t kMaxPort = 65535;

// Reserves the port on which rank 0 will listen: `port`, or a free one for 0. The launcher passes
// the socket to rank 0, so no other program can take the port meanwhile. The socket is bound to
// loopback, because all ranks run on this host. `host` has to be an address of this machine,
// because PyTorch uses it. Throws ConfigError if it is not, or if the port is in use.
Listener reserve_master_port(const std::string& host, uint16_t port);

// The same for a job of several hosts. The socket is bound to all interfaces, for ranks of other
// hosts; the job's secret authenticates them.
Listener reserve_open_port(uint16_t port);

// Parses "host:29500", "[::1]:29500" or "host"; `port` is the default. Throws ConfigError for other
// text, which names `option`.
struct Endpoint {
  std::string host;
  uint16_t port = 0;
};
Endpoint parse_endpoint(std::string_view option, const std::string& text, uint16_t port);

}  // namespace zerorun
