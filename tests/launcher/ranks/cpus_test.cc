#include "launcher/ranks/cpus.h"

#include <sched.h>

#include "tests/common.h"
#include "tests/scratch.h"

namespace zerorun {
namespace {

TEST(CpuList, ReadsRangesAndNumbers) {
  EXPECT_THAT(parse_cpu_list("0-3,8,10-11\n"), ElementsAre(0, 1, 2, 3, 8, 10, 11));
  EXPECT_THAT(parse_cpu_list(""), IsEmpty());
}

TEST(CpuList, StopsAtWhatIsNoList) {
  EXPECT_THAT(parse_cpu_list("1,x,2"), ElementsAre(1));
  EXPECT_THAT(parse_cpu_list("-3"), IsEmpty());
  EXPECT_THAT(parse_cpu_list("0-99999999"), IsEmpty());
  EXPECT_THAT(parse_cpu_list("5-2,7"), ElementsAre(7));
}

TEST(CpuList, WritesWhatItReads) {
  for (const char* text : {"", "0", "0-1", "0,2", "0-3,8,10-11"}) {
    EXPECT_EQ(format_cpu_list(parse_cpu_list(text)), text);
  }
}

TEST(Cores, GroupsSiblingsAndOrdersByNode) {
  const Scratch sysfs;
  // Four cores of two threads each; the even cores are on node 1.
  for (int cpu = 0; cpu < 8; ++cpu) {
    sysfs.write("cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
                std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4) + "\n");
  }
  sysfs.write("node/node0/cpulist", "1,3,5,7\n");
  sysfs.write("node/node1/cpulist", "0,2,4,6\n");
  sysfs.write("node/online", "0-1\n");
  const std::vector<int> allowed = {0, 1, 2, 3, 4, 5, 7};
  const auto cores = group_by_core(allowed, sysfs.path());
  ASSERT_EQ(cores.size(), 4);
  EXPECT_THAT(cores[0].cpus, ElementsAre(1, 5));
  EXPECT_THAT(cores[1].cpus, ElementsAre(3, 7));
  EXPECT_THAT(cores[2].cpus, ElementsAre(0, 4));
  EXPECT_THAT(cores[3].cpus, ElementsAre(2));  // its sibling 6 is not allowed
  EXPECT_EQ(count_nodes(cores), 2);
  EXPECT_EQ(count_cpus(cores), 7);
}

TEST(Cores, WithoutADescriptionEachCpuIsACore) {
  const Scratch empty;
  const std::vector<int> allowed = {3, 5};
  const auto cores = group_by_core(allowed, empty.path());
  ASSERT_EQ(cores.size(), 2);
  EXPECT_THAT(cores[0].cpus, ElementsAre(3));
  EXPECT_THAT(cores[1].cpus, ElementsAre(5));
  EXPECT_EQ(count_nodes(cores), 1);
}

TEST(Cores, ThisMachineAllowsSome) {
  const auto allowed = allowed_cpus();
  EXPECT_FALSE(allowed.empty());
  EXPECT_EQ(count_cpus(group_by_core(allowed)), static_cast<int>(allowed.size()));
  cpu_set_t mask;  // enough for machines with up to 1024 CPUs
  ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  for (const int cpu : allowed) EXPECT_TRUE(CPU_ISSET(cpu, &mask)) << cpu;
  EXPECT_EQ(CPU_COUNT(&mask), static_cast<int>(allowed.size()));
}

std::vector<Core> make_cores(int count, int threads) {
  std::vector<Core> cores;
  for (int core = 0; core < count; ++core) {
    Core one;
    for (int thread = 0; thread < threads; ++thread) one.cpus.push_back(core + thread * count);
    cores.push_back(one);
  }
  return cores;
}

std::vector<CpuShare> divide(const std::vector<Core>& cores, int ranks) {
  return divide_cpus(cores, std::vector<std::optional<int>>(static_cast<size_t>(ranks)));
}

TEST(CpuDivision, GivesWholeCoresInOrder) {
  const auto shares = divide(make_cores(4, 2), 2);
  EXPECT_THAT(shares[0].cpus, ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(shares[1].cpus, ElementsAre(2, 3, 6, 7));
  EXPECT_EQ(shares[0].threads, 2);
}

TEST(CpuDivision, GivesThreadsWhenCoresAreTooFew) {
  const auto shares = divide(make_cores(2, 2), 3);
  EXPECT_THAT(shares[0].cpus, ElementsAre(0));
  EXPECT_THAT(shares[1].cpus, ElementsAre(2));
  EXPECT_THAT(shares[2].cpus, ElementsAre(1, 3));
  EXPECT_EQ(shares[0].threads, 1);
}

TEST(CpuDivision, BindsNothingWhenCpusAreTooFew) {
  const auto shares = divide(make_cores(2, 2), 5);
  ASSERT_EQ(shares.size(), 5);
  for (const CpuShare& share : shares) {
    EXPECT_THAT(share.cpus, IsEmpty());
    EXPECT_EQ(share.threads, 1);
  }
}

TEST(CpuDivision, GivesCoresOfTheDevicesNodeWhileThereAreAny) {
  std::vector<Core> cores = make_cores(8, 1);
  for (size_t core = 4; core < 8; ++core) cores[core].node = 1;
  const auto cpus_of = [&](const std::vector<std::optional<int>>& nodes) {
    std::vector<std::vector<int>> cpus;
    for (const CpuShare& share : divide_cpus(cores, nodes)) {
      EXPECT_EQ(share.threads, 8 / static_cast<int>(nodes.size()));
      cpus.push_back(share.cpus);
    }
    return cpus;
  };
  using Shares = std::vector<std::vector<int>>;
  EXPECT_EQ(cpus_of({1, 1, 0, 0}), (Shares{{4, 5}, {6, 7}, {0, 1}, {2, 3}}));
  EXPECT_EQ(cpus_of({1, 1}), (Shares{{4, 5, 6, 7}, {0, 1, 2, 3}}));
  EXPECT_EQ(cpus_of({std::nullopt, 0}), (Shares{{4, 5, 6, 7}, {0, 1, 2, 3}}));
  EXPECT_EQ(cpus_of({7, 1, 1, 1}), (Shares{{0, 1}, {4, 5}, {6, 7}, {2, 3}}));
}

TEST(CpuDivision, UsesEveryCpuOnceForAnyCounts) {
  for (int cores = 1; cores <= 13; ++cores) {
    for (int ranks = 1; ranks <= cores; ++ranks) {
      std::multiset<int> used;
      int threads = 0;
      for (const CpuShare& share : divide(make_cores(cores, 2), ranks)) {
        EXPECT_FALSE(share.cpus.empty());
        used.insert(share.cpus.begin(), share.cpus.end());
        threads += share.threads;
      }
      EXPECT_EQ(used.size(), static_cast<size_t>(2 * cores));
      EXPECT_EQ(std::set<int>(used.begin(), used.end()).size(), used.size());
      EXPECT_EQ(threads, cores);
    }
  }
}

void describe(const Scratch& root, const std::string& address, const std::string& uuid,
              const std::string& node) {
  root.write("proc/driver/nvidia/gpus/" + address + "/information",
             "Model: \t\t NVIDIA H100\nIRQ:   \t\t 160\nGPU UUID: \t " + uuid + "\n");
  root.write("sys/bus/pci/devices/" + address + "/numa_node", node + "\n");
}

TEST(GpuNodes, AreThoseOfTheAddressesInTheirOrderOrOfTheUuid) {
  const Scratch root;
  describe(root, "0000:b1:00.0", "GPU-bbbb-1", "1");
  describe(root, "0000:18:00.0", "GPU-aaaa-0", "0");
  describe(root, "0000:d0:00.0", "GPU-cccc-2", "-1");
  const std::vector<std::string> gpus = {"1", "0", "2", "3", "GPU-bbbb-1", "GPU-bb", "MIG-x"};
  EXPECT_THAT(gpu_nodes(gpus, root.path()),
              ElementsAre(1, 0, std::nullopt, std::nullopt, 1, 1, std::nullopt));
}

TEST(GpuNodes, AreUnknownWhereNothingDescribesThem) {
  const Scratch empty;
  const std::vector<std::string> gpus = {"0"};
  EXPECT_THAT(gpu_nodes(gpus, empty.path()), ElementsAre(std::nullopt));
}

}  // namespace
}  // namespace zerorun
