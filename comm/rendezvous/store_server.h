#pragma once

#include <sys/types.h>

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/rendezvous/memory_store.h"
#include "os/event_poll.h"
#include "os/socket.h"

namespace zerorun {

// The protocol of the TCP store's server and its clients: frames (os/socket.h). A client
// begins with kHello and the secret; the answer is kGranted or kDenied. Then, any number of times:
// kSet, length of the key (4 bytes), key, value -> kGranted; kGet, key -> kGranted, value, which
// may take as long as nobody sets the key; kFind, key -> kGranted, value, or kAbsent at once.
namespace store_protocol {
inline constexpr std::string_view kHello = "zerorun store 1\n";
inline constexpr char kGranted = 'g';
inline constexpr char kDenied = 'd';
inline constexpr char kSet = 's';
inline constexpr char kGet = 'w';
inline constexpr char kFind = 'f';
inline constexpr char kAbsent = 'a';
inline constexpr size_t kMaxHelloBytes = 4096;
inline constexpr size_t kMaxBytes = size_t{1} << 20;
}  // namespace store_protocol

// Answers the peers of a TCP store, on a thread of its own. A request costs the same however many
// clients there are.
//
// Threat model: other users of the host, or of the network when the job binds more than loopback,
// can connect. A client is authenticated by the job's secret, or, in a job without one, by being a
// process of this user on this host. Unauthenticated clients are dropped, and the memory, the
// connections and the time that they take are bounded. A program that can read the job's memory or
// listen on its network is not kept out: the secret travels in clear text.
class StoreServer {
 public:
  StoreServer(Listener listener, std::string secret, std::shared_ptr<MemoryStore> values);
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  ~StoreServer();

  uint16_t port() const { return listener_.port; }
  // Tells the thread that this process has set a value, for which a client may be waiting.
  void notify() const;

 private:
  struct Connection {
    FileDescriptor socket;
    Deadline opened;
    bool known = false;    // it is authenticated
    bool closing = false;  // once all is sent
    uint32_t events = 0;   // that are waited for
    std::string received;
    std::string to_send;
    std::optional<std::string> wanted;  // the key of a get that waits
  };

  void run();
  void accept_new();
  void drop_unauthenticated();
  // Takes what has come, answers it and sends what can be sent.
  void serve(Connection& connection);
  void receive(Connection& connection);
  void answer_requests(Connection& connection);
  void answer(Connection& connection, const std::string& request);
  void greet(Connection& connection, const std::string& request);
  void send(Connection& connection);
  // Answers those that wait for the key, if it has a value now.
  void answer_waiting(const std::string& key);
  void drop(Connection& connection);
  // Closes connections that are at their end: not while events about them may be pending.
  void close_done();

  Listener listener_;
  const std::string secret_;
  const std::shared_ptr<MemoryStore> values_;
  FileDescriptor wake_;
  const pid_t process_;  // in which the thread runs
  std::atomic<bool> stopping_ = false;
  // Used by the thread only.
  EventPoll poll_;
  std::list<Connection> unauthenticated_;  // oldest first
  std::list<Connection> known_;
  std::map<std::string, std::vector<Connection*>> waiting_;  // by the key that they want
  bool has_done_ = false;                                    // a connection is at its end
  std::thread thread_;
};

}  // namespace zerorun
