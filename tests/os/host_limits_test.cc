#include "os/host_limits.h"

#include <gmock/gmock.h>

#include <string>

#include "tests/scratch.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

using ::testing::HasSubstr;
using testing::Scratch;

TEST(HostLimits, ReadsTheMachinesAndTheGroups) {
  const Scratch root;
  root.write("proc/meminfo", "MemTotal:  2000 kB\nMemFree: 10 kB\nMemAvailable:    1000 kB\n");
  root.write("proc/self/cgroup", "0::/job\n");
  root.write("sys/fs/cgroup/job/memory.max", "500000\n");
  root.write("sys/fs/cgroup/job/memory.current", "300000\n");
  root.write("sys/fs/cgroup/job/memory.stat", "anon 5\ninactive_file 100000\n");
  const HostLimits limits = host_limits(root.path());
  EXPECT_EQ(limits.available, 1'024'000);
  EXPECT_EQ(limits.group_available, 300'000);
}

TEST(HostLimits, WithoutALimitThereIsNone) {
  const Scratch root;
  root.write("proc/self/cgroup", "0::/\n");
  root.write("sys/fs/cgroup/memory.max", "max\n");
  const HostLimits limits = host_limits(root.path());
  EXPECT_FALSE(limits.available);
  EXPECT_FALSE(limits.group_available);
  check_host_memory(limits, size_t{1} << 50, 8, "a test");
}

TEST(HostLimits, WhatMayBeLockedIsTheLimitUnlessTheProcessMayLockAll) {
  const Scratch root;
  const auto lockable = [&](const std::string& limit, const std::string& capabilities) {
    root.write("proc/self/limits",
               "Limit    Soft Limit   Hard Limit  Units\n"
               "Max locked memory         " +
                   limit + "   unlimited   bytes\n");
    root.write("proc/self/status", "Name: x\nCapPrm: ffffffff\nCapEff:\t" + capabilities + "\n");
    return host_limits(root.path()).lockable;
  };
  EXPECT_EQ(lockable("8388608", "0000000000000000"), 8'388'608);
  EXPECT_EQ(lockable("8388608", "0000000000003fff"), 8'388'608);
  EXPECT_FALSE(lockable("8388608", "0000000000004000"));
  EXPECT_FALSE(lockable("unlimited", "0000000000000000"));
}

TEST(HostLimits, LockingMoreThanTheLimitIsSaidWithWhatToDo) {
  const HostLimits limits{.lockable = int64_t{8} << 20};
  EXPECT_EQ(locking_advice(limits, size_t{4} << 20, 2), "");
  EXPECT_EQ(locking_advice({}, size_t{4} << 40, 2), "");
  const std::string advice = locking_advice(limits, size_t{6} << 20, 2);
  EXPECT_THAT(advice, HasSubstr("12.0 MiB of buffers on this host"));
  EXPECT_THAT(advice, HasSubstr("`ulimit -l` allows 8.0 MiB"));
  EXPECT_THAT(advice, HasSubstr("ulimit memlock=-1"));
}

TEST(HostLimits, TooLittleIsAnErrorThatSaysWhatIsMissingWhere) {
  HostLimits limits{.available = int64_t{16} << 30};
  check_host_memory(limits, size_t{8} << 30, 2, "offloading");
  const auto message = [&](size_t nbytes) -> std::string {
    try {
      check_host_memory(limits, nbytes, 2, "offloading");
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message((size_t{8} << 30) + 1),
              HasSubstr("offloading needs 8.00 GiB of host memory for each of 2 ranks, 16.00 GiB "
                        "in all; the machine has 16.00 GiB left"));
  limits.group_available = int64_t{1} << 30;
  EXPECT_THAT(message(size_t{1} << 30), HasSubstr("the control group has 1.00 GiB left"));
}

}  // namespace
}  // namespace zerorun
