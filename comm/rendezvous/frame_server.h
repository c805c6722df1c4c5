#pragma once

#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "os/event_poll.h"
#include "os/socket.h"

namespace zerorun {

// A TCP connection that carries frames (os/socket.h) and never blocks: its owner polls.
class FrameConnection {
 public:
  FrameConnection() = default;
  // `limit`: of a frame's bytes.
  FrameConnection(FileDescriptor socket, size_t limit);

  const FileDescriptor& socket() const { return socket_; }
  // False when nothing more can come. Frames that have come stay, and bytes may be left to send.
  bool open() const { return open_; }
  bool pending() const { return !to_send_.empty(); }
  // True if nothing is received until the owner takes a frame.
  bool full() const { return received_.size() > limit_; }
  void set_limit(size_t limit) { limit_ = limit; }
  void send(const std::string& payload);
  // Both do what is possible now.
  void send_some();
  void receive();
  // The next complete frame. A frame above the limit ends the connection.
  std::optional<std::string> next();
  // Drops all bytes. The socket stays open as long as this object.
  void end();

 private:
  FileDescriptor socket_;
  bool open_ = false;
  size_t limit_ = 0;
  std::string received_;
  std::string to_send_;
};

// Accepts connections. A client is unauthenticated until its first frame, the greeting, is
// admitted. Unauthenticated clients are bounded in number, bytes and time.
class FrameServer {
 public:
  enum class Admission { admit, deny, wait };  // wait: judge the same greeting again later
  using Judge = std::function<Admission(FrameConnection& client, const std::string& greeting)>;
  struct Limits {
    size_t clients;  // that are unauthenticated; the oldest are dropped
    size_t bytes;    // of a greeting
  };
  struct Arrival {
    FrameConnection connection;
    std::string greeting;
  };

  // Listens on `listener`, whose port is reserved. Throws CommError.
  FrameServer(Listener listener, Limits limits);

  uint16_t port() const { return listener_.port; }
  // For poll(): readable when service() has something to do.
  int fd() const { return poll_.fd(); }
  // True if service() has to be called in a second at the latest, to drop silent clients in time.
  bool has_unauthenticated() const { return !clients_.empty(); }
  // Returns the clients that `judge` admits.
  std::vector<Arrival> service(const Judge& judge);
  // Shuts the sockets down, also where a child process holds them too.
  void shut_down() const;

 private:
  struct Client {
    FrameConnection connection;
    Deadline since;
    std::optional<std::string> greeting{};
  };

  void accept_new();
  bool is_done(Client& client, const Judge& judge, std::vector<Arrival>& arrivals);

  Listener listener_;
  const Limits limits_;
  EventPoll poll_;
  std::list<Client> clients_;  // oldest first
};

}  // namespace zerorun
