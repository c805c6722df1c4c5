#pragma once

#include <functional>
#include <list>
#include <vector>

#include "launcher/control/control_connection.h"
#include "launcher/control/control_message.h"
#include "os/socket.h"

namespace zerorun {

// The socket on which the coordinator accepts launchers of other hosts. A connection is
// unauthenticated until its first message, which says who it is. Unauthenticated connections are
// bounded in number, bytes and time.
class ControlServer {
 public:
  struct Arrival {
    ControlConnection connection;
    ControlMessage join;
  };
  using Accepts = std::function<bool(const ControlMessage& join)>;

  // Listens on `listener`, whose port is reserved. Throws CommError.
  explicit ControlServer(Listener listener);

  uint16_t port() const { return listener_.port; }
  // Its listening socket and those of unauthenticated connections.
  std::vector<int> descriptors() const;
  // Returns the connections whose message `accepts` accepts. Others are tried again in later calls.
  std::vector<Arrival> service(const Accepts& accepts);

 private:
  struct Unauthenticated {
    ControlConnection connection;
    ControlConnection::Clock::time_point since;
    std::vector<ControlMessage> said{};
  };

  void accept_new();

  Listener listener_;
  std::list<Unauthenticated> unauthenticated_;  // oldest first
};

}  // namespace zerorun
