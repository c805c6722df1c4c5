#include "launcher/ranks/cpus.h"

#include "tests/common.h"
#include "tests/scratch.h"

namespace zerorun {
namespace {

TEST(CpuList, WritesWhatItReadsUpToWhatIsNoList) {
  for (const char* text : {"", "0", "0-1", "0,2", "0-3,8,10-11"}) {
    EXPECT_EQ(format_cpu_list(parse_cpu_list(text)), text);
  }
  EXPECT_THAT(parse_cpu_list("0-3,8\n"), ElementsAre(0, 1, 2, 3, 8));
  EXPECT_THAT(parse_cpu_list("1,x,2"), ElementsAre(1));
  EXPECT_THAT(parse_cpu_list("-3"), IsEmpty());
  EXPECT_THAT(parse_cpu_list("0-99999999"), IsEmpty());
  EXPECT_THAT(parse_cpu_list("5-2,7"), ElementsAre(7));
}

using Cpus = std::vector<int>;

// Those of each core or share.
template <typename Groups>
std::vector<Cpus> cpus_of(const Groups& groups) {
  std::vector<Cpus> cpus;
  for (const auto& group : groups) cpus.push_back(group.cpus);
  return cpus;
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
  // The sibling of 2 is not allowed.
  EXPECT_THAT(cpus_of(cores), ElementsAre(Cpus{1, 5}, Cpus{3, 7}, Cpus{0, 4}, Cpus{2}));
  EXPECT_EQ(count_nodes(cores), 2);
  EXPECT_EQ(count_cpus(cores), 7);
}

TEST(Cores, WithoutADescriptionEachCpuIsACore) {
  const Scratch empty;
  const auto cores = group_by_core(Cpus{3, 5}, empty.path());
  EXPECT_THAT(cpus_of(cores), ElementsAre(Cpus{3}, Cpus{5}));
  EXPECT_EQ(count_nodes(cores), 1);
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

TEST(CpuDivision, GivesWholeCoresInOrderElseThreadsElseBindsNothing) {
  struct Row {
    std::vector<Core> cores;
    int ranks;
    std::vector<Cpus> expected;
    int threads;  // of the first rank
  };
  for (const Row& row : {Row{make_cores(4, 2), 2, {{0, 1, 4, 5}, {2, 3, 6, 7}}, 2},
                         Row{make_cores(2, 2), 3, {{0}, {2}, {1, 3}}, 1},
                         Row{make_cores(2, 2), 5, std::vector<Cpus>(5), 1}}) {
    const auto shares = divide(row.cores, row.ranks);
    EXPECT_EQ(cpus_of(shares), row.expected);
    EXPECT_EQ(shares[0].threads, row.threads);
  }
}

TEST(CpuDivision, GivesCoresOfTheDevicesNodeWhileThereAreAny) {
  std::vector<Core> cores = make_cores(8, 1);
  for (size_t core = 4; core < 8; ++core) cores[core].node = 1;
  const auto divided = [&](const std::vector<std::optional<int>>& nodes) {
    return cpus_of(divide_cpus(cores, nodes));
  };
  using Shares = std::vector<Cpus>;
  EXPECT_EQ(divided({1, 1, 0, 0}), (Shares{{4, 5}, {6, 7}, {0, 1}, {2, 3}}));
  EXPECT_EQ(divided({1, 1}), (Shares{{4, 5, 6, 7}, {0, 1, 2, 3}}));
  EXPECT_EQ(divided({std::nullopt, 0}), (Shares{{4, 5, 6, 7}, {0, 1, 2, 3}}));
  EXPECT_EQ(divided({7, 1, 1, 1}), (Shares{{0, 1}, {4, 5}, {6, 7}, {2, 3}}));
}

TEST(CpuDivision, UsesEveryCpuOnceForAnyCounts) {
  for (int cores = 1; cores <= 13; ++cores) {
    for (int ranks = 1; ranks <= cores; ++ranks) {
      std::set<int> used;
      size_t cpus = 0;
      int threads = 0;
      for (const CpuShare& share : divide(make_cores(cores, 2), ranks)) {
        EXPECT_FALSE(share.cpus.empty());
        used.insert(share.cpus.begin(), share.cpus.end());
        cpus += share.cpus.size();
        threads += share.threads;
      }
      EXPECT_EQ(cpus, static_cast<size_t>(2 * cores));
      EXPECT_EQ(used.size(), cpus);
      EXPECT_EQ(threads, cores);
    }
  }
}

TEST(GpuNodes, AreThoseOfTheAddressesInTheirOrderOrOfTheUuidIfAnythingDescribesThem) {
  const Scratch root;
  std::vector<std::string> gpus = {"0"};
  EXPECT_THAT(gpu_nodes(gpus, root.path()), ElementsAre(std::nullopt));
  for (const auto& [address, uuid, node] : {std::array{"0000:b1:00.0", "GPU-bbbb-1", "1"},
                                            std::array{"0000:18:00.0", "GPU-aaaa-0", "0"},
                                            std::array{"0000:d0:00.0", "GPU-cccc-2", "-1"}}) {
    root.write(fmt::format("proc/driver/nvidia/gpus/{}/information", address),
               fmt::format("Model: \t\t NVIDIA H100\nGPU UUID: \t {}\n", uuid));
    root.write(fmt::format("sys/bus/pci/devices/{}/numa_node", address), node);
  }
  gpus = {"1", "0", "2", "3", "GPU-bbbb-1", "GPU-bb", "MIG-x"};
  EXPECT_THAT(gpu_nodes(gpus, root.path()),
              ElementsAre(1, 0, std::nullopt, std::nullopt, 1, 1, std::nullopt));
}

}  // namespace
}  // namespace zerorun
