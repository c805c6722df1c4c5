#pragma once

#include <cstdint>
#include <string>

namespace zerorun {

// Where rank 0 will listen for its peers. The launcher only makes sure that it can: it binds the
// address, lets go, and leaves the port to rank 0.

// `port` if it is free at `host`, or a free one for 0. Throws ConfigError when `host` is not an
// address of this machine or the port is busy.
uint16_t choose_port(const std::string& host, uint16_t port);

}  // namespace zerorun
