#pragma once

#include <poll.h>
#include <sys/socket.h>

#include "core/build_id.h"
#include "launcher/control/control_connection.h"
#include "os/socket.h"
#include "tests/common.h"
#include "zerorun/version.h"

namespace zerorun::testing {

// The test's end of a control connection.
class Peer {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Peer(FileDescriptor socket) : connection_(std::move(socket)) {}

  void send(const ControlMessage& message) { connection_.send(message); }
  // In one piece, so that they come together.
  void send_at_once(const ControlMessage& one, const ControlMessage& other) {
    const std::string bytes = frame_of(one.encode()) + frame_of(other.encode());
    ASSERT_EQ(::send(connection_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // The next message but for signs of life; nothing at the end of the connection.
  std::optional<ControlMessage> next() {
    const auto deadline = Clock::now() + 60s;  // only a hang reaches it
    while (Clock::now() < deadline) {
      connection_.beat(Clock::now());
      connection_.service();
      while (auto message = connection_.next()) {
        if (!message->is("alive")) return message;
      }
      if (!connection_.open()) return std::nullopt;
      std::this_thread::sleep_for(5ms);
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

// The connection that comes next.
inline FileDescriptor accepted(const Listener& listener) {
  pollfd arrival = {listener.socket.get(), POLLIN, 0};
  poll(&arrival, 1, 60000);  // only a hang takes so long
  return accept_from(listener);
}

// The test is the coordinator of the launcher that comes next, which gets ready.
inline Peer accept_ready(const Listener& listener) {
  Peer launcher(accepted(listener));
  launcher.await("join");
  launcher.send(ControlMessage("job"));
  launcher.await("ready");
  return launcher;
}

// The first message of a launcher of this build, without its place.
inline ControlMessage join_message(const std::string& token, const std::string& host,
                                   const std::string& build = build_id().data()) {
  ControlMessage join("join");
  join.add("token", token).add("version", ZERORUN_VERSION).add("build", build).add("host", host);
  return join.add("index", "0");
}

}  // namespace zerorun::testing
