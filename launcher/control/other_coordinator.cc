#include "launcher/control/other_coordinator.h"

#include "core/printable.h"
#include "os/socket.h"

namespace zerorun {

std::optional<std::string> OtherCoordinator::ask(const std::string& host, uint16_t port,
                                                 const ControlMessage& introduction) {
  constexpr std::chrono::seconds kPause{2};
  constexpr std::chrono::milliseconds kTime{400};
  constexpr size_t kMaxAnswer = size_t{1} << 16;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return std::nullopt;
  next_ = now + kPause;
  try {
    const ConnectionAttempt attempt = attempt_to_connect(host, port, kTime);
    if (!attempt.socket) return std::nullopt;
    const Deadline deadline = std::chrono::steady_clock::now() + kTime;
    send_frame(attempt.socket, introduction.encode(), deadline);
    const auto answer =
        ControlMessage::decode(receive_frame(attempt.socket, kMaxAnswer, deadline));
    if (answer.is("denied")) return printable_lines(answer.text("why"));
  } catch (const CommError&) {  // nobody, or another program
  }
  return std::nullopt;
}

}  // namespace zerorun
