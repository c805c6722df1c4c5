#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>

#include "comm/rendezvous/store_server.h"
#include "core/check.h"
#include "launcher/control/control_connection.h"
#include "os/socket.h"
#include "tests/fuzz/driver.h"

namespace zerorun::testing {
namespace {

using namespace zerorun::store_protocol;  // NOLINT(google-build-using-namespace)

constexpr std::string_view kSecret = "the job's secret";

std::string hello(std::string_view secret = kSecret) {
  return frame_of(std::string(kHello).append(secret));
}
std::string get(const std::string& key) { return frame_of(kGet + key); }
std::string find(const std::string& key) { return frame_of(kFind + key); }
std::string set(const std::string& key, const std::string& value) {
  return frame_of(kSet + frame_of(key) + value);
}

// A store that answers on a Unix socket: thousands of TCP connections would use up the ports.
class Server {
 public:
  Server() : server_(listen(), std::string(kSecret), values_) { values_->set("kept", "value"); }

  FileDescriptor connect() const {
    FileDescriptor client(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    while (::connect(client.get(), address(), sizeof address_) != 0) {
      ZR_CHECK(errno == EAGAIN, "cannot connect: {}",
               errno);  // the server has yet to accept others
      usleep(100);
    }
    return client;
  }

 private:
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&address_); }

  Listener listen() {
    address_.sun_family = AF_UNIX;  // sun_path begins with 0: a name that no file has
    fmt::format_to(address_.sun_path + 1, "zerorun-fuzz-{}", getpid());
    Listener listener{
        .socket = FileDescriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))};
    ZR_CHECK(::bind(listener.socket.get(), address(), sizeof address_) == 0, "cannot bind");
    ZR_CHECK(::listen(listener.socket.get(), 64) == 0, "cannot listen");
    return listener;
  }

  sockaddr_un address_{};
  const std::shared_ptr<MemoryStore> values_ = std::make_shared<MemoryStore>();
  StoreServer server_;
};

const Server& server() {
  static const Server made;
  return made;
}

// Whatever a client sends, the job's own clients are answered as before.
void send_to_store(const std::string& bytes) {
  {
    const FileDescriptor client = server().connect();
    ::send(client.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  const FileDescriptor peer = server().connect();
  const Deadline deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  send_frame(peer, std::string(kHello).append(kSecret), deadline);
  ZR_CHECK(receive_frame(peer, kMaxBytes, deadline) == std::string{kGranted}, "got no welcome");
  send_frame(peer, std::string{kGet} + "kept", deadline);
  const std::string answer = receive_frame(peer, kMaxBytes, deadline);
  ZR_CHECK(answer.starts_with(kGranted), "got '{}' for a key that has a value", answer);
}

// Any bytes are a message that encodes to themselves, or give a CommError.
void decode_launchers_message(const std::string& bytes) {
  may_throw<CommError>([&] {
    const ControlMessage message = ControlMessage::decode(bytes);
    ZR_CHECK(message.encode() == bytes, "a message of {} bytes has changed", bytes.size());
    const Cluster cluster = decode_cluster(message);
    for (const HostSlots& host : cluster.hosts) {
      ZR_CHECK(host.slots.size() <= kMaxRanksPerHost, "got {} slots", host.slots.size());
    }
    decode_meeting(message);
  });
}

std::string begin_message() {
  Cluster cluster;
  cluster.hosts = {{.host = "worker-1", .slots = {0, 1}}, {.host = "fe80::1", .slots = {3}}};
  cluster.endpoint_host = "10.0.0.1";
  Meeting meeting;
  meeting.master_addr = "worker-1";
  meeting.master_port = 29500;
  meeting.secret = kSecret;
  meeting.run_id = "7";
  return encode_begin(cluster, meeting, 1).encode();
}

}  // namespace

void fuzz(std::string_view input) {
  const std::string bytes(input);
  decode_launchers_message(bytes);
  send_to_store(bytes);
}

std::vector<std::string> fuzz_seeds() {
  return {begin_message(), hello() + set("a", "1") + get("a") + find("b"),
          hello() + get("never") + get("kept"), hello("guess") + get("kept"),
          hello() + find("kept") + set("b", std::string(300, 'x'))};
}

}  // namespace zerorun::testing
