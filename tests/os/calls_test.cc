// What is made of single system calls.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include "os/event_poll.h"
#include "os/socket.h"
#include "os/thread_priority.h"
#include "os/uninterrupted.h"
#include "tests/common.h"
#include "tests/error_of.h"
#include "zerorun/error.h"

namespace zerorun::testing {
namespace {

TEST(EventPollTest, ReportsWhatIsReadyWithItsSubject) {
  std::array<FileDescriptor, 2> events = {FileDescriptor(eventfd(0, EFD_CLOEXEC)),
                                          FileDescriptor(eventfd(0, EFD_CLOEXEC))};
  EventPoll poll;
  for (FileDescriptor& event : events) poll.watch(event.get(), EPOLLIN, &event);
  EXPECT_TRUE(poll.wait(0).empty());

  eventfd_write(events[1].get(), 1);
  pollfd all{poll.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&all, 1, 0), 1);
  const auto ready = poll.wait(-1);
  ASSERT_EQ(ready.size(), 1U);
  EXPECT_EQ(ready[0].data.ptr, &events[1]);

  poll.change(events[1].get(), 0, &events[1]);
  EXPECT_TRUE(poll.wait(0).empty());
  poll.change(events[1].get(), EPOLLOUT, &events[1]);
  EXPECT_EQ(poll.wait(0).size(), 1U);
  poll.forget(events[1].get());
  EXPECT_TRUE(poll.wait(0).empty());
  EXPECT_THROW(poll.watch(-1, EPOLLIN, nullptr), IoError);
}

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
  const auto fails_twice_with = [&calls](int error) {
    calls = 0;
    return [&calls, error] {
      errno = error;
      return ++calls < 3 ? -1 : 7;
    };
  };
  EXPECT_EQ(uninterrupted(fails_twice_with(EINTR)), 7);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(uninterrupted(fails_twice_with(EIO)), -1);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(errno, EIO);
}

}  // namespace
}  // namespace zerorun::testing
