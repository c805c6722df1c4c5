#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "launcher/control/control_message.h"

namespace zerorun {

// Looks for another coordinator of the same job: one that serves an endpoint that is no address of
// this host. Two launchers that were started with --node_rank 0 would otherwise wait for each other.
class OtherCoordinator {
 public:
  // Asks the endpoint, at most once in two seconds and for less than one. Returns why the launcher
  // that answers does not let this one in; nothing if none answers, or if the endpoint leads here.
  std::optional<std::string> ask(const std::string& host, uint16_t port,
                                 const ControlMessage& introduction);

 private:
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace zerorun
