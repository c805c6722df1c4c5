#include "comm/hierarchical/interface.h"

#include "config/env.h"
#include "os/address.h"

namespace zerorun {

std::string choose_interface(const CommunicatorOptions& options) {
  if (!options.interface.empty()) return options.interface;
  if (const auto name = read_environment("GLOO_SOCKET_IFNAME")) return *name;
  if (options.master_addr.empty()) return "127.0.0.1";
  return own_address_towards(options.master_addr);
}

}  // namespace zerorun
