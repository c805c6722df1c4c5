#include "os/host_limits.h"

#include "tests/scratch.h"

namespace zerorun::testing {
namespace {

TEST(HostLimits, ReadsTheMachinesAndTheGroupsIfThereAreAny) {
  const Scratch root;
  root.write("proc/self/cgroup", "0::/job\n");
  root.write("sys/fs/cgroup/job/memory.max", "max\n");
  EXPECT_FALSE(host_limits(root.path()).available);
  EXPECT_FALSE(host_limits(root.path()).group_available);
  root.write("proc/meminfo", "MemTotal:  2000 kB\nMemFree: 10 kB\nMemAvailable:    1000 kB\n");
  root.write("sys/fs/cgroup/job/memory.max", "500000\n");
  root.write("sys/fs/cgroup/job/memory.current", "200000\n");
  EXPECT_EQ(host_limits(root.path()).available, 1'024'000);
  EXPECT_EQ(host_limits(root.path()).group_available, 300'000);
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

TEST(HostLimits, TheSmallerOfMachineAndGroupIsAvailable) {
  EXPECT_EQ((HostLimits{.available = 5, .group_available = 3}).available_bytes(), 3U);
  EXPECT_EQ((HostLimits{.available = 2, .group_available = 3}).available_bytes(), 2U);
  EXPECT_EQ((HostLimits{.available = 5}).available_bytes(), 5U);
  EXPECT_GE((HostLimits{}).available_bytes(), size_t{1} << 62);
}

}  // namespace
}  // namespace zerorun::testing
