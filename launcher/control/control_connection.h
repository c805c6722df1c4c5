#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "launcher/control/control_message.h"
#include "os/file_descriptor.h"

namespace zerorun {

// The connection between the coordinator and the launcher of one host. It never blocks: its owner
// polls. Both sides send a heartbeat, so silence means that the host or the link is lost.
class ControlConnection {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kBeat{500};
  static constexpr std::chrono::milliseconds kMaxSilence{3000};

  ControlConnection() = default;
  explicit ControlConnection(FileDescriptor socket);

  int fd() const { return socket_.get(); }
  bool open() const { return static_cast<bool>(socket_); }
  // The events for poll().
  short events() const;
  void send(const ControlMessage& message);
  // Sends and receives available bytes. Afterwards the connection is closed if it ended.
  void service();
  // The next complete message. Messages that were not taken stay for the next user of the
  // connection. If the peer sent anything else, the connection is closed.
  std::optional<ControlMessage> next();
  // Sends a heartbeat if it is due.
  void beat(Clock::time_point now);
  bool silent(Clock::time_point now) const { return now - heard_ > kMaxSilence; }
  // Resets the time of silence.
  void listen_anew() { heard_ = Clock::now(); }
  // Sends the remaining bytes, for at most `timeout`.
  void flush(std::chrono::milliseconds timeout);
  // Raises the limit of message sizes, after the peer was authenticated.
  void trust() { limit_ = kMaxTrustedBytes; }
  // Closes the connection and drops messages that were not taken.
  void close();

 private:
  static constexpr size_t kMaxUnauthenticatedBytes = size_t{1} << 16;
  static constexpr size_t kMaxTrustedBytes = size_t{1} << 24;

  void write_some();

  FileDescriptor socket_;
  std::string received_;
  std::string to_send_;
  size_t limit_ = kMaxUnauthenticatedBytes;
  Clock::time_point heard_ = Clock::now();
  Clock::time_point beaten_ = Clock::now();
};

}  // namespace zerorun
