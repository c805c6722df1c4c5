#include "os/event_poll.h"

#include <poll.h>
#include <sys/eventfd.h>

#include "tests/common.h"
#include "zerorun/error.h"

namespace zerorun {
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

}  // namespace
}  // namespace zerorun
