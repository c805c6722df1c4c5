#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/rendezvous/frame_server.h"
#include "launcher/hosts/cluster.h"
#include "launcher/job.h"

namespace zerorun {

// A message between launchers of several hosts: a kind, and named values of any bytes. A name may
// have several values.
class ControlMessage {
 public:
  explicit ControlMessage(std::string kind) : kind_(std::move(kind)) {}

  const std::string& kind() const { return kind_; }
  bool is(std::string_view kind) const { return kind_ == kind; }
  ControlMessage& add(std::string name, std::string value);
  ControlMessage& add(std::string name, int64_t value);
  ControlMessage& add_all(const std::string& name, const std::vector<std::string>& values);

  // The first value of a name; empty if there is none.
  std::string text(std::string_view name) const;
  // Throws CommError unless the value is a number from `low` to `high`.
  int64_t number(std::string_view name, int64_t low, int64_t high) const;
  std::vector<std::string> all(std::string_view name) const;

  std::string encode() const;
  // Throws CommError for bytes that encode() did not produce.
  static ControlMessage decode(const std::string& bytes);

 private:
  std::string kind_;
  std::vector<std::pair<std::string, std::string>> fields_;
};

// Encode and decode the cluster and the meeting that the coordinator sends to the launcher of one
// host.

ControlMessage encode_begin(const Cluster& cluster, const Meeting& meeting, int node_rank);
// Both throw CommError for invalid messages.
Cluster decode_cluster(const ControlMessage& begin);
Meeting decode_meeting(const ControlMessage& message);

std::string encode_slots(const std::vector<int>& slots);
std::vector<int> decode_slots(const std::string& text);

// The connection between the coordinator and the launcher of one host. It never blocks: its owner
// polls. Both sides send a heartbeat, so silence means that the host or the link is lost.
class ControlConnection {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kBeat{500};
  static constexpr std::chrono::milliseconds kMaxSilence{3000};

  ControlConnection() = default;
  explicit ControlConnection(FileDescriptor socket)
      : ControlConnection(FrameConnection(std::move(socket), kMaxBytes)) {}
  // Of a client that was let in.
  explicit ControlConnection(FrameConnection frames) : frames_(std::move(frames)) {
    frames_.set_limit(kMaxBytes);
  }

  bool open() const { return frames_.open(); }
  // For poll(): the descriptor, -1 if it is closed, and the events.
  int fd() const { return open() ? frames_.socket().get() : -1; }
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
  // Closes the connection and drops messages that were not taken.
  void close() { frames_ = {}; }

 private:
  static constexpr size_t kMaxBytes = size_t{1} << 24;

  FrameConnection frames_;
  Clock::time_point heard_ = Clock::now();
  Clock::time_point beaten_ = Clock::now();
};

}  // namespace zerorun
