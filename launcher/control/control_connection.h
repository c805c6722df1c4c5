#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "launcher/control/control_message.h"
#include "os/file_descriptor.h"

namespace zerorun {

// The connection between the coordinator and the launcher of one host. It never blocks: its owner
// polls. Both sides say something at every beat, so that silence means a dead host or a cut link.
class ControlConnection {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kBeat{500};
  static constexpr std::chrono::milliseconds kMaxSilence{3000};

  ControlConnection() = default;
  explicit ControlConnection(FileDescriptor socket);

  int fd() const { return socket_.get(); }
  bool open() const { return static_cast<bool>(socket_); }
  // The events that poll() should wait for.
  short events() const;
  void send(const ControlMessage& message);
  // Moves bytes both ways. A connection that ended is closed afterwards.
  void service();
  // The next message that is complete. Those that nobody has asked for yet stay, for whoever the
  // connection is lent to. Where something else came the connection is closed.
  std::optional<ControlMessage> next();
  // Says that this side lives, when it is time to.
  void beat(Clock::time_point now);
  bool silent(Clock::time_point now) const { return now - heard_ > kMaxSilence; }
  // Forgives silence up to now.
  void listen_anew() { heard_ = Clock::now(); }
  // Sends what is left, for at most `timeout`.
  void flush(std::chrono::milliseconds timeout);
  // A peer that is not known yet may only send little.
  void trust() { limit_ = kMaxTrustedBytes; }
  // Forgets what came and was not asked for.
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
