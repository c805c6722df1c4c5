#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/control/control_connection.h"
#include "os/socket.h"

namespace zerorun {

// The first line of a wait for launchers of other hosts; the next ones come at growing intervals.
inline constexpr std::chrono::seconds kFirstNote{5};
// How long a launcher waits where only the user can help: hosts that come late change nothing.
inline constexpr std::chrono::seconds kHopelessWait{8};
// How long it waits for a host from which nothing comes.
inline constexpr std::chrono::seconds kSilentWait{60};

// A launcher's wait for the launcher of the first host: the attempts to reach it, what the last one
// has found, and what the user can do about it.
class EndpointWait {
 public:
  using Clock = std::chrono::steady_clock;
  struct Limit {
    std::chrono::seconds time;
    bool given = false;  // by the user, so that it holds whatever is found
  };
  EndpointWait(std::string host, uint16_t port, Limit limit);

  // Tries each address once. The result is empty if none answers.
  FileDescriptor try_once();
  // The line that is due now, if one is.
  std::optional<std::string> note();
  // Throws CommError with a summary of the attempts if the wait has been too long for what they
  // found.
  void check_limit() const;

 private:
  enum class Finding : uint8_t { none, refused, refused_here, no_route, no_name, silence };

  Finding judge(const ConnectionAttempt& attempt) const;
  std::string advice() const;
  std::string place() const;
  double seconds() const { return std::chrono::duration<double>(Clock::now() - began_).count(); }

  std::string host_;
  uint16_t port_;
  Limit limit_;
  Clock::time_point began_ = Clock::now();
  Clock::time_point found_at_ = began_;  // since when `finding_` is what is found
  Finding finding_ = Finding::none;
  std::string outcome_{};  // of the last attempt, by address
  int attempts_ = 0;
  std::chrono::seconds next_note_ = kFirstNote;
};

// Asks whether a launcher of the same job serves an endpoint that is no address of this host: two
// launchers that were started with --node_rank 0 would otherwise wait for each other. Takes less
// than a second, because the caller has other connections to serve: `addresses` are numeric.
struct OtherCoordinator {
  bool reached = false;  // something accepts connections: perhaps the way there leads back here
  std::string denial{};  // why the launcher there does not let this one in; empty if none answers
};
OtherCoordinator ask_other_coordinator(const std::vector<std::string>& addresses, uint16_t port,
                                       const ControlMessage& introduction);

}  // namespace zerorun
