#include "os/thread_priority.h"

#include <sys/resource.h>

#include "tests/common.h"

namespace zerorun {
namespace {

int nice_of(pid_t thread) { return ::getpriority(PRIO_PROCESS, static_cast<id_t>(thread)); }

TEST(ThreadPriority, IsLowerForTheCallingThreadAlone) {
  const int before = nice_of(::gettid());
  std::thread([&] {
    lower_thread_priority();
    EXPECT_EQ(nice_of(::gettid()), std::max(before, 10));
  }).join();
  EXPECT_EQ(nice_of(::gettid()), before);
}

}  // namespace
}  // namespace zerorun
