#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "os/socket.h"

namespace zerorun {

inline constexpr int64_t kMaxPort = 65535;

// Reserves the port on which rank 0 will meet its peers, `port` or a free one for 0: the launcher
// hands the socket to rank 0, so no other program can have the port meanwhile. All ranks run on
// this host, so the socket is of the loopback interface; `host` must be an address of this machine,
// since PyTorch meets there. Throws ConfigError when it is not, or the port is busy.
Listener reserve_master_port(const std::string& host, uint16_t port);

// The same for a job of several hosts: the socket is of every interface, for ranks that come from
// elsewhere; the job's secret keeps others out.
Listener reserve_open_port(uint16_t port);

// "host:29500", "[::1]:29500" or "host", with `port` where none is written. Throws ConfigError for
// other text, as the value of `option`.
struct Endpoint {
  std::string host;
  uint16_t port = 0;
};
Endpoint parse_endpoint(std::string_view option, const std::string& text, uint16_t port);

}  // namespace zerorun
