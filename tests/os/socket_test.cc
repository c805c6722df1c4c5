#include "os/socket.h"

#include "tests/common.h"
#include "tests/error_of.h"

namespace zerorun {
namespace {

using testing::error_of;

Deadline after(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }

// Ranks and launchers use it, and say themselves who is at the other end.
TEST(SocketTest, ErrorsNameTheAddressAndNoRank) {
  const Listener silent = reserve_port("127.0.0.1", 0);
  const std::string address = "127.0.0.1 port " + std::to_string(silent.port);
  for (const Absence absence : {Absence::gone, Absence::not_yet}) {
    const auto connect = [&] {
      connect_to("127.0.0.1", silent.port, after(std::chrono::milliseconds(20)), absence);
    };
    EXPECT_THAT(error_of(connect), AllOf(HasSubstr(address), Not(HasSubstr("rank"))));
  }
  listen_on(silent);
  const FileDescriptor socket =
      connect_to("127.0.0.1", silent.port, after(std::chrono::minutes(1)));
  const auto receive = [&] { receive_frame(socket, 100, after(std::chrono::milliseconds(20))); };
  EXPECT_THAT(error_of(receive), HasSubstr("the peer does not answer"));
}

}  // namespace
}  // namespace zerorun
