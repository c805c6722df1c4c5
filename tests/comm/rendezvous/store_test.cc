// The rendezvous: stores in memory and over TCP, and unauthenticated clients at the port.
#include <poll.h>
#include <sys/socket.h>

#include "comm/rendezvous/store_server.h"
#include "comm/rendezvous/tcp_store.h"
#include "os/address.h"
#include "os/socket.h"
#include "tests/common.h"

namespace zerorun::testing {
namespace {

using namespace std::literals;

Deadline soon() { return std::chrono::steady_clock::now() + 30s; }

struct TcpPair {
  std::shared_ptr<Store> server;
  std::shared_ptr<Store> client;
};

TcpPair make_tcp_pair() {
  TcpStoreOptions options;
  options.serve = true;
  options.secret = "shared by the job";
  TcpPair pair;
  pair.server = make_tcp_store(options);
  options.serve = false;
  options.port = bound_port(*pair.server);
  pair.client = make_tcp_store(options);
  return pair;
}

void expect_served(const TcpPair& pair) {
  pair.client->set("still", "served");
  EXPECT_EQ(pair.server->get("still", 30s), "served");
}

// A client that was let in.
FileDescriptor greeted(const Store& server) {
  FileDescriptor client = connect_to("127.0.0.1", bound_port(server), soon());
  send_frame(client, std::string(store_protocol::kHello) + "shared by the job", soon());
  EXPECT_EQ(receive_frame(client, 100, soon()), std::string{store_protocol::kGranted});
  return client;
}

// Every store does this, from each of its ends.
void expect_store(Store& one, Store& other) {
  const std::string binary("a\0b\n\xff", 5);
  for (const auto& [key, value] :
       {std::pair("a"s, "1"s), std::pair("a"s, "2"s), std::pair("empty"s, ""s),
        std::pair(binary, binary), std::pair("large"s, std::string(300'000, 'x'))}) {
    one.set(key, value);
    EXPECT_EQ(other.get(key, 30s), value);
  }
  EXPECT_EQ(other.find("a"), "2");
  EXPECT_EQ(other.find("empty"), "");
  EXPECT_EQ(other.find("none"), std::nullopt);
  auto waiting = std::async(std::launch::async, [&] { return other.get("later", 30s); });
  one.set("later", "now");
  EXPECT_EQ(waiting.get(), "now");

  EXPECT_ERROR(other.get("never", 20ms), "'never'");
  one.set("never", "works after a failure");
  EXPECT_EQ(other.get("never", 30s), "works after a failure");
}

TEST(StoreTest, KeepsValuesOfAllSides) {
  const auto store = make_memory_store();
  expect_store(*store, *store);
  for (const auto& [from_client, to_client] : each(kEither, kEither)) {
    const TcpPair pair = make_tcp_pair();
    expect_store(from_client ? *pair.client : *pair.server,
                 to_client ? *pair.client : *pair.server);
  }
}

TEST(StoreTest, ClientsThatWaitAreAnsweredOneByOneAndThoseThatLeaveAreForgotten) {
  const TcpPair pair = make_tcp_pair();
  std::vector<FileDescriptor> clients;
  for (int i = 0; i < 200; ++i) {  // two wait for each key, and one of them leaves
    clients.push_back(greeted(*pair.server));
    send_frame(clients.back(), store_protocol::kGet + std::to_string(i / 2), soon());
  }
  for (size_t i = 0; i < clients.size(); i += 2) clients[i].close();
  for (int key = 0; key < 100; ++key) {
    const std::string value = "value " + std::to_string(key);
    (key % 2 == 0 ? pair.server : pair.client)->set(std::to_string(key), value);
    const FileDescriptor& client = clients[static_cast<size_t>(2 * key + 1)];
    EXPECT_EQ(receive_frame(client, 100, soon()), store_protocol::kGranted + value);
  }
}

TEST(StoreTest, ABusyPortIsAnErrorThatNamesItAndTheWayOut) {
  TcpStoreOptions options;
  options.serve = true;
  const auto first = make_tcp_store(options);
  options.port = bound_port(*first);
  EXPECT_ERROR(make_tcp_store(options), std::to_string(options.port), "--master_port");
}

TEST(StoreTest, AClientWithAnotherSecretIsRefused) {
  const TcpPair pair = make_tcp_pair();
  TcpStoreOptions options;
  options.port = bound_port(*pair.server);
  for (const std::string secret :
       {"", "shared by the jo", "shared by the jobs", "Shared by the job"}) {
    options.secret = secret;
    EXPECT_ERROR(make_tcp_store(options), "ZERORUN_JOB_SECRET");
  }
  expect_served(pair);
}

TEST(StoreTest, AServerThatCannotBeReachedIsAnErrorAfterTheTimeout) {
  TcpStoreOptions options;
  options.port = reserve_port("127.0.0.1", 0).port;  // and lets it go again
  options.timeout = 50ms;
  EXPECT_ERROR(make_tcp_store(options), "rank 0", std::to_string(options.port));
  options.host = "no such host";
  EXPECT_ERROR(make_tcp_store(options), "'no such host'");
}

TEST(StoreTest, AClientMayStartBeforeTheServer) {
  TcpStoreOptions options;
  options.port = reserve_port("127.0.0.1", 0).port;
  auto client = std::async(std::launch::async, [options] { return make_tcp_store(options); });
  options.serve = true;
  const auto server = make_tcp_store(options);
  server->set("hello", "world");
  EXPECT_EQ(client.get()->get("hello", 30s), "world");
}

TEST(StoreTest, AServerThatGoesEndsTheWaitOfItsClients) {
  TcpPair pair = make_tcp_pair();
  auto waiting = std::async(std::launch::async,
                            [&] { return error_of([&] { pair.client->get("key", 30s); }); });
  pair.client->set("other", "");  // the server is up
  pair.server.reset();
  EXPECT_THAT(waiting.get(), HasSubstr("rank 0"));
}

TEST(StoreTest, AServerThatHasGoneIsAnErrorAtOnce) {
  TcpPair pair = make_tcp_pair();
  pair.server.reset();
  const auto before = std::chrono::steady_clock::now();
  for (int i = 0; i < 2; ++i) {  // on the connection that broke, and without one
    EXPECT_ERROR(pair.client->set("key", ""),
                 "cannot set 'key' in the store of rank 0 at 127.0.0.1");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - before, 20s);  // not the timeout
}

TEST(StoreTest, AServerThatGoesBeforeItAnswersIsAnErrorAtOnceIfItCannotCome) {
  Listener listener = reserve_port("127.0.0.1", 0);
  listen_on(listener);
  TcpStoreOptions options;
  options.port = listener.port;
  options.timeout = 60s;
  FileDescriptor connection = connect_to("127.0.0.1", options.port, soon());
  listener.socket.close();
  const auto before = std::chrono::steady_clock::now();
  EXPECT_ERROR(join_tcp_store(options, std::move(connection), Absence::gone),
               "cannot join the store of rank 0 at 127.0.0.1", "no program listens");
  EXPECT_LT(std::chrono::steady_clock::now() - before, 20s);  // not the timeout
}

// True when the server has closed the connection.
bool is_dropped(const FileDescriptor& socket) {
  std::array<char, 4096> bytes{};
  while (true) {
    pollfd entry{socket.get(), POLLIN, 0};
    if (poll(&entry, 1, 30000) <= 0) return false;
    const ssize_t count = recv(socket.get(), bytes.data(), bytes.size(), 0);
    if (count <= 0) return true;
  }
}

TEST(StoreTest, ClientsThatDoNotKeepToTheProtocolAreDropped) {
  const TcpPair pair = make_tcp_pair();
  const uint16_t port = bound_port(*pair.server);
  const std::vector<std::string> greetings = {
      "GET / HTTP/1.1\r\n\r\n",
      std::string(100, '\0'),
      std::string("\xff\xff\xff\xff", 4) + std::string(100, 'x'),
      frame_of(std::string(store_protocol::kHello)),
      frame_of(std::string(store_protocol::kHello) + "a guess"),
      frame_of(store_protocol::kGet + std::string("key")),
      frame_of(std::string(store_protocol::kMaxHelloBytes + 1, 'x')),
  };
  for (const std::string& greeting : greetings) {
    const FileDescriptor client = connect_to("127.0.0.1", port, soon());
    send(client.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
    EXPECT_TRUE(is_dropped(client)) << greeting.substr(0, 20);
  }
  // Of peers that know the secret.
  for (const std::string& request :
       {std::string(), std::string("x"), std::string(1, store_protocol::kSet),
        store_protocol::kSet + std::string("\xff\xff\xff\x7f", 4),
        store_protocol::kSet + std::string("\x05\0\0\0key", 7)}) {
    const FileDescriptor peer = greeted(*pair.server);
    send_frame(peer, request, soon());
    EXPECT_TRUE(is_dropped(peer));
  }
  // Clients that say nothing go when too many are there.
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(connect_to("127.0.0.1", port, soon()));
  EXPECT_TRUE(is_dropped(silent.front()));
  expect_served(pair);
}

// A child that says the greeting of a job without a secret as another user; 0 when it was refused.
int greet_as(uid_t user, uint16_t port) {
  const pid_t child = fork();
  if (child == 0) {
    int code = 1;
    try {
      if (setuid(user) != 0) _exit(2);
      const FileDescriptor client = connect_to("127.0.0.1", port, soon());
      send_frame(client, std::string(store_protocol::kHello), soon());
      code = receive_frame(client, 100, soon()) == std::string{store_protocol::kDenied} ? 0 : 1;
    } catch (...) {
      code = 3;
    }
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(StoreTest, WithoutASecretOtherUsersAreRefused) {
  TcpStoreOptions options;
  options.serve = true;
  const auto server = make_tcp_store(options);
  options.serve = false;
  options.port = bound_port(*server);
  make_tcp_store(options)->set("mine", "is let in");
  EXPECT_EQ(server->get("mine", 30s), "is let in");
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  constexpr uid_t kNobody = 65534;
  EXPECT_EQ(greet_as(kNobody, options.port), 0);
}

TEST(StoreTest, TheUserOfAPeerComesFromTheKernelsTable) {
  const Listener listener = reserve_port("127.0.0.1", 0);
  listen_on(listener);
  const FileDescriptor client = connect_to("127.0.0.1", listener.port, soon());
  pollfd entry{listener.socket.get(), POLLIN, 0};
  ASSERT_EQ(poll(&entry, 1, 30000), 1);
  FileDescriptor accepted(accept(listener.socket.get(), nullptr, nullptr));
  EXPECT_EQ(user_of_peer(accepted), geteuid());
  shutdown(client.get(), SHUT_WR);  // as a client that is gone, which the kernel counts as root's
  EXPECT_EQ(user_of_peer(accepted), std::nullopt);
  const Scratch root;
  root.write("proc/net/tcp", "title\n");
  EXPECT_EQ(user_of_peer(accepted, root.path()), std::nullopt);
}

// What this process, which has the server, computes in half a second.
double cpu_seconds() {
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(500ms);
  return static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
}

// Its side is closed, and its answer is not read.
TEST(StoreTest, AHalfClosedClientCostsNoTime) {
  const TcpPair pair = make_tcp_pair();
  pair.server->set("large", std::string(900'000, 'x'));
  const FileDescriptor client = greeted(*pair.server);
  constexpr int kSmall = 4096;
  setsockopt(client.get(), SOL_SOCKET, SO_RCVBUF, &kSmall, sizeof(kSmall));
  const std::string find = store_protocol::kFind + std::string("large");
  for (int i = 0; i < 8; ++i) send_frame(client, find, soon());
  std::this_thread::sleep_for(100ms);
  shutdown(client.get(), SHUT_WR);
  std::this_thread::sleep_for(100ms);
  EXPECT_LT(cpu_seconds(), 0.2);
  expect_served(pair);
}

TEST(StoreTest, AClientThatSendsWhileItsGetWaitsCostsNoTimeAlsoWhenItDies) {
  const TcpPair pair = make_tcp_pair();
  FileDescriptor client = greeted(*pair.server);
  const std::string more = store_protocol::kFind + std::string(400'000, 'x');
  const auto get_and_send_more = [&](const std::string& key) {
    send_frame(client, store_protocol::kGet + key, soon());
    for (int i = 0; i < 3; ++i) send_frame(client, more, soon());
    std::this_thread::sleep_for(100ms);
  };
  get_and_send_more("key");
  EXPECT_LT(cpu_seconds(), 0.2);
  pair.client->set("key", "value");
  EXPECT_EQ(receive_frame(client, 100, soon()), store_protocol::kGranted + std::string("value"));
  client = greeted(*pair.server);
  get_and_send_more("never");
  constexpr linger kReset{.l_onoff = 1, .l_linger = 0};
  setsockopt(client.get(), SOL_SOCKET, SO_LINGER, &kReset, sizeof(kReset));
  client.close();
  EXPECT_LT(cpu_seconds(), 0.2);
}

}  // namespace
}  // namespace zerorun::testing
