#include "launcher/address.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "launcher/process.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

using ::testing::HasSubstr;

std::string error_of(const std::string& host, uint16_t port) {
  try {
    choose_port(host, port);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(MasterPort, AFreeOneCanBeBound) {
  const uint16_t port = choose_port("127.0.0.1", 0);
  EXPECT_GT(port, 0);
  EXPECT_EQ(choose_port("127.0.0.1", port), port);
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
  EXPECT_THAT(error_of("no such host", 0), HasSubstr("does not resolve"));
}

}  // namespace
}  // namespace zerorun
