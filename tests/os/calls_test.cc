// What is made of single system calls.
#include <sys/resource.h>

#include "os/socket.h"
#include "os/thread_priority.h"
#include "os/uninterrupted.h"
#include "tests/common.h"
#include "tests/error_of.h"
#include "zerorun/error.h"

namespace zerorun::testing {
namespace {

// Ranks and launchers use it, and say themselves who is at the other end.
TEST(SocketTest, ErrorsNameTheAddressAndNoRank) {
  const Listener silent = reserve_port("127.0.0.1", 0);
  const auto soon = [] { return std::chrono::steady_clock::now() + std::chrono::milliseconds(20); };
  for (const Absence absence : {Absence::gone, Absence::not_yet}) {
    EXPECT_THAT(
        error_of([&] { connect_to("127.0.0.1", silent.port, soon(), absence); }),
        AllOf(HasSubstr(fmt::format("127.0.0.1 port {}", silent.port)), Not(HasSubstr("rank"))));
  }
  listen_on(silent);
  const FileDescriptor socket =
      connect_to("127.0.0.1", silent.port, soon() + std::chrono::minutes(1));
  EXPECT_THAT(error_of([&] { receive_frame(socket, 100, soon()); }),
              HasSubstr("the peer does not answer"));
}

int nice_of(pid_t thread) { return ::getpriority(PRIO_PROCESS, static_cast<id_t>(thread)); }

TEST(ThreadPriority, IsLowerForTheCallingThreadAlone) {
  const int before = nice_of(::gettid());
  std::thread([&] {
    lower_thread_priority();
    EXPECT_EQ(nice_of(::gettid()), std::max(before, 10));
  }).join();
  EXPECT_EQ(nice_of(::gettid()), before);
}

TEST(Uninterrupted, CallsAgainOnlyAfterASignal) {
  int calls = 0;
  const auto call = [&calls](int error) {
    calls = 0;
    return uninterrupted([&calls, error] {
      errno = error;
      return ++calls < 3 ? -1 : 7;
    });
  };
  EXPECT_EQ(call(EINTR), 7);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(call(EIO), -1);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(errno, EIO);
}

}  // namespace
}  // namespace zerorun::testing
