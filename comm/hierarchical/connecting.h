#pragma once

#include <functional>
#include <optional>
#include <string>

#include "comm/group_options.h"
#include "comm/hierarchical/topology.h"
#include "comm/waiting.h"

namespace zerorun::hierarchical {

// Sets up a rank's connections to other hosts, for which the peers have to take part. A rank that
// waits prints a notice after 10 s. It stops when a peer has failed, which writes the reason to the
// store. What it refers to must outlive it.
struct Connecting {
  const GroupOptions& options;
  const Topology& topology;

  // Waits for the value that `peer` writes to `key` in the store. Throws CommError.
  std::string get(int peer, const std::string& key) const;
  // Runs `connect`, which waits for `peer`. Another thread calls `cancel` to end that wait. Throws
  // CommError.
  void run(int peer, const std::function<void()>& connect,
           const std::function<void()>& cancel) const;
};

// The IP address of this host at which ranks of other hosts connect. It is that of the interface or
// address in the options or in GLOO_SOCKET_IFNAME. If neither is set, it is the address of the
// interface that routes to options.master_addr, or loopback if that is not set either. Throws
// CommError if this host does not have the address.
std::string choose_address(const CommunicatorOptions& options);
// The key of the store for the first error of a communicator's ranks.
std::string error_key(const GroupOptions& options);
// The error in the store, if there is one. Throws CommError if the store is unreachable.
std::optional<std::string> find_error(const GroupOptions& options);
// Reports to the peers why this rank cannot take part. On rank 0, which serves the store, waits a
// moment so that they can read it.
void report_error(const GroupOptions& options, const std::string& error) noexcept;

}  // namespace zerorun::hierarchical
