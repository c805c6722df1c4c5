#include "launcher/address.h"

#include "core/check.h"

namespace zerorun {

Listener reserve_master_port(const std::string& host, uint16_t port) {
  try {
    reserve_port(host, 0);
  } catch (const CommError& error) {
    fail<ConfigError>("--master_addr: {}", error.what());
  }
  try {
    return reserve_port("127.0.0.1", port);
  } catch (const CommError& error) {
    fail<ConfigError>("--master_port {}: {}; leave the option out for a free port", port,
                      error.what());
  }
}

}  // namespace zerorun
