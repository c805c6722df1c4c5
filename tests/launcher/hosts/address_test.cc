#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "launcher/job.h"
#include "launcher/ranks/process.h"
#include "tests/common.h"
#include "tests/error_of.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

std::string error_of(const std::string& host, uint16_t port) {
  return testing::error_of<ConfigError>([&] { reserve_master_port(host, port); });
}

TEST(MasterPort, IsHeldForRank0) {
  std::vector<Listener> held;
  std::set<uint16_t> ports;
  for (int job = 0; job < 50; ++job) {
    held.push_back(reserve_master_port("127.0.0.1", 0));
    ports.insert(held.back().port);
  }
  EXPECT_EQ(ports.size(), held.size());
  EXPECT_FALSE(ports.contains(0));
  // Rank 0 takes over the descriptor that it was given, once.
  const int inherited = dup(held[0].socket.get());
  EXPECT_FALSE(inherit_listener(inherited, held[1].port));
  const auto taken = inherit_listener(inherited, held[0].port);
  ASSERT_TRUE(taken);
  listen_on(*taken);
  EXPECT_FALSE(inherit_listener(inherited, held[0].port));
  EXPECT_FALSE(inherit_listener(-1, held[0].port));
  EXPECT_THAT(error_of("127.0.0.1", held[0].port), HasSubstr("in use"));
}

// A program whose rank 0 meets its peers by other means, as PyTorch does, listens there itself.
TEST(MasterPort, AProgramThatDoesNotTakeTheSocketMayListenThere) {
  const Listener held = reserve_master_port("127.0.0.1", 0);
  const Listener own = reserve_port("127.0.0.1", held.port);
  EXPECT_NO_THROW(listen_on(own));
  EXPECT_THROW(listen_on(held), CommError);
}

TEST(MasterPort, ABusyOneIsAnError) {
  const FileDescriptor listener(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof(address);
  ASSERT_EQ(bind(listener.get(), generic, length), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  ASSERT_EQ(getsockname(listener.get(), generic, &length), 0);
  const uint16_t port = ntohs(address.sin_port);
  EXPECT_THAT(error_of("127.0.0.1", port), HasSubstr("--master_port " + std::to_string(port)));
  EXPECT_THAT(error_of("127.0.0.1", port), HasSubstr("in use"));
}

TEST(MasterAddress, MustBeOfThisHost) {
  // 192.0.2.0/24 is reserved for documentation (RFC 5737).
  EXPECT_THAT(error_of("192.0.2.1", 0), HasSubstr("not an address of this host"));
}

TEST(MasterAddress, MustResolve) {
  EXPECT_THAT(error_of("no such host", 0),
              HasSubstr("--master_addr: cannot find the address of host 'no such host'"));
}

}  // namespace
}  // namespace zerorun
