#include "os/host_limits.h"
#include "tests/common.h"

namespace zerorun::testing {
namespace {

// What a control group says of itself.
struct Said {
  std::optional<int64_t> oom_kills{}, limit{};
  std::optional<double> quota{};
  std::optional<int64_t> available{};
};

struct GroupCase {
  const char* label;
  std::vector<std::pair<std::string, std::string>> files;  // of groups without "sys/fs/cgroup/"
  Said said{};
};

TEST(ControlGroupTest, IsWhatTheFilesSay) {
  const auto rows = std::to_array<GroupCase>(
      {{"version 2",
        {{"proc/self/cgroup", "0::/user.slice/job\n"},
         {"user.slice/job/memory.events", "low 0\noom 4\noom_kill 3\n"},
         {"user.slice/job/memory.max", "1000\n"},
         {"user.slice/job/memory.current", "990\n"},
         {"user.slice/job/memory.stat", "anon 90\nfile 900\ninactive_file 500\nactive_file 400\n"},
         {"user.slice/job/cpu.max", "150000 100000\n"}},
        {3, 1000, 1.5, 910}},  // the page cache can be read again
       {"version 1",
        {{"proc/self/cgroup", "5:cpuacct,cpu:/job\n4:memory:/job\n0::/\n"},
         {"memory/job/memory.oom_control", "oom_kill_disable 0\noom_kill 7\n"},
         {"memory/job/memory.limit_in_bytes", "1000\n"},
         {"memory/job/memory.usage_in_bytes", "990\n"},
         {"memory/job/memory.stat",
          "inactive_file 1\nactive_file 1\ntotal_inactive_file 500\n"
          "total_active_file 400\n"},
         {"cpu/job/cpu.cfs_quota_us", "400000\n"},
         {"cpu/job/cpu.cfs_period_us", "100000\n"}},
        {7, 1000, 4.0, 910}},
       {"version 2 without limits",
        {{"proc/self/cgroup", "0::/\n"}, {"memory.max", "max\n"}, {"cpu.max", "max 100000\n"}}},
       {"version 1 without limits",
        {{"proc/self/cgroup", "4:memory:/\n3:cpu:/\n"},
         {"memory/memory.limit_in_bytes", "9223372036854771712\n"},
         {"cpu/cpu.cfs_quota_us", "-1\n"},
         {"cpu/cpu.cfs_period_us", "100000\n"}}},
       {"the tightest of nested groups counts",
        {{"proc/self/cgroup", "0::/slice/job/step\n"},
         {"slice/job/step/memory.max", "max\n"},
         {"slice/job/step/memory.current", "10\n"},
         {"slice/job/memory.max", "800\n"},
         {"slice/job/memory.current", "100\n"},
         {"slice/memory.max", "1000\n"},
         {"slice/memory.current", "1100\n"}},
        {{}, 800, {}, 0}},
       {"a container sees its own group as the root",
        {{"proc/self/cgroup", "0::/docker/0123abcd\n"},
         {"memory.events", "oom_kill 2\n"},
         {"memory.max", "50\n"}},
        {2, 50, {}, 50}},
       {"the whole machine", {{"proc/vmstat", "nr_free_pages 12\noom_kill 5\n"}}, {5}},
       {"what it does not understand",
        {{"proc/self/cgroup", "garbage\n::\n1:\n"}, {"proc/vmstat", "oom_kill\n"}}}});
  for (const auto& [label, files, said] : rows) {
    SCOPED_TRACE(label);
    const Scratch root;
    for (const auto& [name, text] : files) {
      root.write((name.starts_with("proc/") ? "" : "sys/fs/cgroup/") + name, text);
    }
    const ControlGroup group(root.path());
    EXPECT_EQ(group.oom_kills(), said.oom_kills);
    EXPECT_EQ(group.memory_limit(), said.limit);
    EXPECT_EQ(group.cpu_quota(), said.quota);
    EXPECT_EQ(group.memory_available(), said.available);
  }
}

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
