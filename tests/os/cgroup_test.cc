#include "os/host_limits.h"
#include "tests/scratch.h"

namespace zerorun::testing {
namespace {

TEST(ControlGroup, ReadsVersion2) {
  const Scratch root;
  root.write("proc/self/cgroup", "0::/user.slice/job\n");
  root.write("sys/fs/cgroup/user.slice/job/memory.events", "low 0\noom 4\noom_kill 3\n");
  root.write("sys/fs/cgroup/user.slice/job/memory.max", "1048576\n");
  root.write("sys/fs/cgroup/user.slice/job/cpu.max", "150000 100000\n");
  const ControlGroup group(root.path());
  EXPECT_EQ(group.oom_kills(), 3);
  EXPECT_EQ(group.memory_limit(), 1048576);
  EXPECT_EQ(group.cpu_quota(), 1.5);
}

TEST(ControlGroup, ReadsVersion1) {
  const Scratch root;
  root.write("proc/self/cgroup", "5:cpuacct,cpu:/job\n4:memory:/job\n0::/\n");
  root.write("sys/fs/cgroup/memory/job/memory.oom_control",
             "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n");
  root.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "4096\n");
  root.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "400000\n");
  root.write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  const ControlGroup group(root.path());
  EXPECT_EQ(group.oom_kills(), 7);
  EXPECT_EQ(group.memory_limit(), 4096);
  EXPECT_EQ(group.cpu_quota(), 4.0);
}

TEST(ControlGroup, NoLimitsAreNoValues) {
  const Scratch v2;
  v2.write("proc/self/cgroup", "0::/\n");
  v2.write("sys/fs/cgroup/memory.max", "max\n");
  v2.write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(ControlGroup(v2.path()).memory_limit(), std::nullopt);
  EXPECT_EQ(ControlGroup(v2.path()).cpu_quota(), std::nullopt);
  const Scratch v1;
  v1.write("proc/self/cgroup", "4:memory:/\n3:cpu:/\n");
  v1.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  v1.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  v1.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(ControlGroup(v1.path()).memory_limit(), std::nullopt);
  EXPECT_EQ(ControlGroup(v1.path()).cpu_quota(), std::nullopt);
}

// 990 of 1000 bytes are used, 900 of them for files that can be read again.
TEST(ControlGroup, ThePageCacheIsAvailable) {
  const Scratch v2;
  v2.write("proc/self/cgroup", "0::/job\n");
  v2.write("sys/fs/cgroup/job/memory.max", "1000\n");
  v2.write("sys/fs/cgroup/job/memory.current", "990\n");
  v2.write("sys/fs/cgroup/job/memory.stat",
           "anon 90\nfile 900\ninactive_file 500\nactive_file 400\n");
  EXPECT_EQ(ControlGroup(v2.path()).memory_available(), 910);
  const Scratch v1;
  v1.write("proc/self/cgroup", "4:memory:/job\n");
  v1.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1000\n");
  v1.write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "990\n");
  v1.write("sys/fs/cgroup/memory/job/memory.stat",
           "inactive_file 1\nactive_file 1\ntotal_inactive_file 500\ntotal_active_file 400\n");
  EXPECT_EQ(ControlGroup(v1.path()).memory_available(), 910);
}

TEST(ControlGroup, TheTightestOfTheNestedGroupsCounts) {
  const Scratch root;
  root.write("proc/self/cgroup", "0::/slice/job/step\n");
  root.write("sys/fs/cgroup/slice/job/step/memory.max", "max\n");
  root.write("sys/fs/cgroup/slice/job/step/memory.current", "10\n");
  root.write("sys/fs/cgroup/slice/job/memory.max", "800\n");
  root.write("sys/fs/cgroup/slice/job/memory.current", "100\n");
  root.write("sys/fs/cgroup/slice/memory.max", "1000\n");
  root.write("sys/fs/cgroup/slice/memory.current", "900\n");
  const ControlGroup group(root.path());
  EXPECT_EQ(group.memory_limit(), 800);
  EXPECT_EQ(group.memory_available(), 100);
  root.write("sys/fs/cgroup/memory.max", "50\n");  // as a container sees its own group
  EXPECT_EQ(group.memory_available(), 50);
  root.write("sys/fs/cgroup/memory.current", "60\n");
  EXPECT_EQ(group.memory_available(), 0);
}

TEST(ControlGroup, ContainerSeesItsGroupAsTheRoot) {
  const Scratch root;
  root.write("proc/self/cgroup", "0::/docker/0123abcd\n");
  root.write("sys/fs/cgroup/memory.events", "oom_kill 2\n");
  EXPECT_EQ(ControlGroup(root.path()).oom_kills(), 2);
}

TEST(ControlGroup, FallsBackToTheWholeMachine) {
  const Scratch root;
  root.write("proc/vmstat", "nr_free_pages 12\noom_kill 5\n");
  EXPECT_EQ(ControlGroup(root.path()).oom_kills(), 5);
}

TEST(ControlGroup, SurvivesWhatItDoesNotUnderstand) {
  const Scratch root;
  root.write("proc/self/cgroup", "garbage\n::\n1:\n");
  root.write("proc/vmstat", "oom_kill\n");
  const ControlGroup group(root.path());
  EXPECT_EQ(group.oom_kills(), std::nullopt);
  EXPECT_EQ(group.memory_limit(), std::nullopt);
  EXPECT_EQ(group.cpu_quota(), std::nullopt);
}

}  // namespace
}  // namespace zerorun::testing
