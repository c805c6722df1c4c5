#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/rendezvous/frame_server.h"
#include "comm/shm/segment.h"
#include "os/event_poll.h"
#include "os/socket.h"
#include "zerorun/communicator.h"

namespace zerorun {

// The protocol between the TCP store's server and its clients. Messages are frames (os/socket.h). A
// client first sends kHello and the secret; the server answers kGranted or kDenied. Then the client
// sends any number of these requests:
//   kSet, length of the key (4 bytes), key, value -> kGranted
//   kGet, key -> kGranted, value; the answer waits until the key has a value
//   kFind, key -> kGranted, value, or kAbsent, at once
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

// A Store in memory, for ranks that are threads of one process.
class MemoryStore final : public Store {
 public:
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  std::optional<std::string> find(const std::string& key) override;
  std::shared_ptr<LocalSegments> local_segments() override { return segments_; }

 private:
  const std::shared_ptr<LocalSegments> segments_ = std::make_shared<LocalSegments>();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;  // guarded by mutex_
};

// Serves a TCP store on its own thread. The cost of a request does not depend on the number of
// clients.
//
// Threat model: other users of the host, or of the network if the job listens on more than
// loopback, can connect. A client is authenticated by the job's secret or, in a job without one, by
// being a process of the same user on this host. Unauthenticated clients are dropped, and the
// memory, connections and time that they take are bounded. There is no protection from a program
// that can read the job's memory or listen on its network, because the secret is sent in clear
// text.
class StoreServer {
 public:
  StoreServer(Listener listener, std::string secret, std::shared_ptr<MemoryStore> values);
  ~StoreServer();

  uint16_t port() const { return server_.port(); }
  // Wakes the thread after this process has set a value for which a client may be waiting.
  void notify() const;

 private:
  struct Client {
    FrameConnection connection;
    uint32_t events = EPOLLIN;            // epoll events of the socket
    std::optional<std::string> wanted{};  // key of the kGet that waits
  };

  void run();
  FrameServer::Admission greet(FrameConnection& client, std::string_view greeting) const;
  void add(FrameConnection connection);
  // Answers complete requests and sends as much as the socket takes.
  void serve(Client& client);
  void answer(Client& client, const std::string& request);
  // Answers the clients that wait for the key, if it now has a value.
  void answer_waiting(const std::string& key);
  // Forgets clients that have ended. Not called while events about them may be pending.
  void remove_ended();

  const std::string secret_;
  const std::shared_ptr<MemoryStore> values_;
  FileDescriptor wake_;
  const pid_t process_;  // the process that has the thread
  std::atomic<bool> stopping_ = false;
  // Used by the thread only.
  FrameServer server_;
  EventPoll poll_;
  std::list<Client> clients_;
  std::map<std::string, std::vector<Client*>> waiting_;  // by the key that they wait for
  bool has_ended_ = false;                               // a client has
  std::thread thread_;
};

}  // namespace zerorun
