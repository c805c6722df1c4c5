#include "comm/hierarchical/interface.h"

#include "config/env.h"
#include "core/check.h"
#include "os/address.h"

namespace zerorun {

namespace {

std::string own_address(const CommunicatorOptions& options, const std::string& name) {
  try {
    std::string address = own_address_of(name, options.master_addr);
    const bool far = !options.master_addr.empty() && !is_loopback(options.master_addr);
    if (far && is_loopback(address)) {
      fail<CommError>("'{}' has the address {}, which every host has for itself", name, address);
    }
    return address;
  } catch (const CommError& error) {
    fail<CommError>(
        "rank {} cannot exchange data with other hosts: {}; expected an interface or an address of "
        "this host (--interface, GLOO_SOCKET_IFNAME)",
        options.rank, error.what());
  }
}

}  // namespace

std::string choose_address(const CommunicatorOptions& options) {
  std::string name = options.interface;
  if (name.empty()) name = read_environment("GLOO_SOCKET_IFNAME").value_or("");
  name = name.substr(0, name.find(','));  // PyTorch's may be a list
  if (!name.empty()) return own_address(options, name);
  if (options.master_addr.empty()) return "127.0.0.1";
  return own_address_towards(options.master_addr);
}

}  // namespace zerorun
