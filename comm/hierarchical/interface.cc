#include "comm/hierarchical/interface.h"

#include "config/env.h"
#include "core/check.h"
#include "os/address.h"

namespace zerorun {

namespace {

std::string own_address(const CommunicatorOptions& options, const std::string& name) {
  try {
    return own_address_of(name, options.master_addr);
  } catch (const CommError& error) {
    fail<CommError>(
        "rank {} cannot exchange data with other hosts: {}; expected an interface or an address of "
        "this host (--interface, GLOO_SOCKET_IFNAME)",
        options.rank, error.what());
  }
}

}  // namespace

std::string choose_address(const CommunicatorOptions& options) {
  if (!options.interface.empty()) return own_address(options, options.interface);
  if (const auto name = read_environment("GLOO_SOCKET_IFNAME")) {
    return own_address(options, name->substr(0, name->find(',')));  // PyTorch's may be a list
  }
  if (options.master_addr.empty()) return "127.0.0.1";
  return own_address_towards(options.master_addr);
}

}  // namespace zerorun
