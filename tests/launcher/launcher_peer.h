#pragma once

#include <sys/socket.h>

#include "launcher/control/control_connection.h"
#include "os/socket.h"
#include "tests/common.h"

namespace zerorun::testing {

// The test's end of a control connection.
class Peer {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Peer(FileDescriptor socket) : connection_(std::move(socket)) { connection_.trust(); }

  void send(const ControlMessage& message) { connection_.send(message); }
  // In one piece, so that they come together.
  void send_at_once(const ControlMessage& one, const ControlMessage& other) {
    const std::string bytes = frame_of(one.encode()) + frame_of(other.encode());
    ASSERT_EQ(::send(connection_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // The next message but for signs of life; nothing at the end of the connection.
  std::optional<ControlMessage> next() {
    const auto deadline = Clock::now() + std::chrono::seconds(60);  // only a hang reaches it
    while (Clock::now() < deadline) {
      connection_.beat(Clock::now());
      connection_.service();
      while (auto message = connection_.next()) {
        if (!message->is("alive")) return message;
      }
      if (!connection_.open()) return std::nullopt;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    throw std::runtime_error("no message within the deadline");
  }
  ControlMessage await(std::string_view kind) {
    while (auto message = next()) {
      if (message->is(kind)) return *message;
    }
    throw std::runtime_error("the connection ended before '" + std::string(kind) + "'");
  }

 private:
  ControlConnection connection_;
};

}  // namespace zerorun::testing
