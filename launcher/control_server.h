#pragma once

#include <functional>
#include <list>
#include <vector>

#include "launcher/control_connection.h"
#include "launcher/control_message.h"
#include "os/socket.h"

namespace zerorun {

// Where the coordinator is reached by the launchers of the other hosts. Whoever connects is a
// stranger until its first message, which says who it is; strangers that are not accepted are
// bounded in number, bytes and time.
class ControlServer {
 public:
  struct Arrival {
    ControlConnection connection;
    ControlMessage join;
  };
  using Accepts = std::function<bool(const ControlMessage& join)>;

  // `listener` is reserved; listens on it. Throws CommError.
  explicit ControlServer(Listener listener);

  uint16_t port() const { return listener_.port; }
  // Its own socket and those of strangers.
  std::vector<int> descriptors() const;
  // Those whose message `accepts` takes; one whose time may still come is asked about again.
  std::vector<Arrival> service(const Accepts& accepts);

 private:
  struct Stranger {
    ControlConnection connection;
    ControlConnection::Clock::time_point since;
    std::vector<ControlMessage> said{};
  };

  void accept_new();

  Listener listener_;
  std::list<Stranger> strangers_;  // oldest first
};

}  // namespace zerorun
