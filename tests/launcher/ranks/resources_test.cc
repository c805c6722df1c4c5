#include "launcher/ranks/resources.h"

#include <sys/wait.h>

#include <csignal>

#include "launcher/ranks/cpus.h"
#include "tests/common.h"

namespace zerorun::testing {
namespace {

const auto kUnset = std::nullopt;

struct GpuCase {
  const char* label;
  std::optional<std::string> visible;  // CUDA_VISIBLE_DEVICES
  int machine;                         // GPUs in it
  RankRequest request;
  std::string expected;  // the ranks' GPUs or, after "error: ", a part of it
};

RankRequest request_of(Accelerator accelerator, const char* count) {
  return {.count = count, .accelerator = accelerator};
}

const auto kGpuCases = std::to_array<GpuCase>(
    {{"all of the machine", kUnset, 4, {}, "0 1 2 3"},
     {"all visible", "7,5", 8, {}, "7 5"},
     {"blanks in the list", " 1 , 3", 4, {}, "1 3"},
     {"list ends at -1", "0,1,-1,2", 4, {}, "0 1"},
     {"list ends at an unknown index", "1,9,2", 4, {}, "1"},
     {"uuids pass through", "GPU-8932f937,GPU-12", 8, {}, "GPU-8932f937 GPU-12"},
     {"mig pass through", "MIG-a/1/0,MIG-b", 1, {}, "MIG-a/1/0 MIG-b"},
     {"count", kUnset, 4, {.count = "2"}, "0 1"},
     {"count auto", "6,7", 8, {.count = "auto"}, "6 7"},
     {"count gpu", "6,7", 8, {.count = "gpu"}, "6 7"},
     {"count -1 is all", "6,7", 8, {.count = "-1"}, "6 7"},
     {"count too high", "6,7", 8, {.count = "3"}, "error: offers 2 GPUs (6,7)"},
     {"count absurd", kUnset, 2, {.count = "99999999999999"}, "error: --num_gpus '9999"},
     {"count beyond", kUnset, 2, request_of(Accelerator::cpu, "1000000"),
      "error: --num_gpus '1000000'"},
     {"count zero", kUnset, 2, {.count = "0"}, "error: --num_gpus '0'"},
     {"count negative", kUnset, 2, {.count = "-2"}, "error: --num_gpus '-2'"},
     {"count no number", kUnset, 2, {.count = "2x"}, "error: --num_gpus '2x'"},
     {"include uuid", "GPU-a,GPU-b", 8, {.include = "localhost:1"}, "GPU-b"},
     {"include sorts, drops copies", "4,5,6", 8, {.include = "localhost:2,0,2"}, "4 6"},
     {"include host and slot", "4,5", 8, {.include = "localhost@localhost:0"}, "4 5"},
     {"include only blanks", "4,5", 8, {.include = " "}, "error: expected HOST"},
     {"include by name", kUnset, 2, {.include = "worker-1.cluster:1"}, "1"},
     {"include by short name", kUnset, 2, {.include = "worker-1:1"}, "1"},
     {"include beyond", "4,5", 8, {.include = "localhost:2"}, "error: slot 2, but this host"},
     {"include other host", kUnset, 2, {.include = "worker-2:0"}, "error: no --hostfile"},
     {"include no slot", kUnset, 2, {.include = "localhost:"}, "error: no slot after"},
     {"include an empty slot", kUnset, 2, {.include = "localhost:0,"}, "error: slot ''"},
     {"include negative", kUnset, 4, {.include = "localhost:-1"}, "error: slot '-1'"},
     {"include empty part", kUnset, 2, {.include = "localhost:0@"}, "error: expected HOST"},
     {"exclude slot", "4,5,6", 8, {.exclude = "localhost:1"}, "4 6"},
     {"exclude all slots", "4,5", 8, {.exclude = "localhost:0,1"}, "error: leaves no GPU"},
     {"hidden", "", 4, {.accelerator = Accelerator::cuda}, "error: shows none"},
     {"gpu count, none", kUnset, 0, {.count = "gpu"}, "error: shows none"},
     {"gpu count, cpu ranks", kUnset, 4, request_of(Accelerator::cpu, "gpu"), "error: contradicts"},
     {"cpu count, cuda ranks", kUnset, 4, request_of(Accelerator::cuda, "cpu"),
      "error: contradicts"}});

TEST(GpuSelection, IncludeExcludeAndCountIndexTheVisibleDevices) {
  for (const GpuCase& row : kGpuCases) {
    HostResources host;
    host.name = "worker-1.cluster";
    host.gpus = visible_gpus(row.visible, row.machine);
    Selection selection;
    const auto select = [&] { selection = select_ranks(row.request, host); };
    if (row.expected.starts_with("error: ")) {
      EXPECT_THAT(error_of<ConfigError>(select), HasSubstr(row.expected.substr(7))) << row.label;
      continue;
    }
    EXPECT_EQ(error_of(select), "") << row.label;
    EXPECT_EQ(fmt::format("{}", fmt::join(selection.gpus, " ")), row.expected) << row.label;
    EXPECT_EQ(selection.slots.size(), selection.gpus.size()) << row.label;
    EXPECT_EQ(selection.note, "") << row.label;
  }
}

// That has these GPUs besides.
HostResources cpu_host(std::vector<std::string> gpus = {}) {
  HostResources host;
  host.name = "laptop";
  host.cpus = 16;
  host.numa_nodes = 2;
  host.gpus = std::move(gpus);
  return host;
}

TEST(CpuSelection, CountsRanksAndSaysSoUnlessAsked) {
  struct Row {
    const char* label;
    RankRequest request;
    size_t ranks;
    std::string note;
  };
  for (const Row& row : std::to_array<Row>(
           {{"one per NUMA node", {}, 2, "no GPU found: 2 CPU ranks"},
            {"count", {.count = "1"}, 1, "no GPU found: 1 CPU rank"},
            {"more than CPUs",
             {.count = "40"},
             40,
             "no GPU found: 40 CPU ranks share 16 CPUs; a job is fastest with at most one rank "
             "for each CPU"},
            {"auto", {.count = "auto"}, 16, "no GPU found: 16 CPU ranks"},
            {"cpu", {.count = "cpu"}, 16, ""},
            {"asked for", {.count = "17", .accelerator = Accelerator::cpu}, 17, ""},
            {"include slots", {.include = "localhost:0,15"}, 2, "no GPU found: 2 CPU ranks"},
            {"include copies", {.include = "localhost:5,5"}, 1, "no GPU found: 1 CPU rank"},
            {"include the host", {.include = "laptop"}, 2, "no GPU found: 2 CPU ranks"},
            {"exclude", {.exclude = "localhost:0"}, 1, "no GPU found: 1 CPU rank"}})) {
    const Selection selection = select_ranks(row.request, cpu_host());
    EXPECT_EQ(selection.slots.size(), row.ranks) << row.label;
    EXPECT_EQ(selection.note, row.note) << row.label;
    EXPECT_THAT(selection.gpus, IsEmpty()) << row.label;
    EXPECT_EQ(selection.none_found, !row.note.empty()) << row.label;
  }
}

TEST(Selection, WithoutCudaBackendGpusAreNotUsed) {
  HostResources host = cpu_host({"0", "1", "2"});
  host.cuda_problem.text = "this build has no CUDA backend";
  const Selection selection = select_ranks({}, host);
  EXPECT_THAT(selection.gpus, IsEmpty());
  EXPECT_EQ(selection.note, "this build has no CUDA backend: 2 CPU ranks");
  EXPECT_FALSE(selection.none_found);
  EXPECT_THROW(select_ranks({.accelerator = Accelerator::cuda}, host), ConfigError);
}

// The host shows GPUs, so a number means them; without one, whatever there is will do.
TEST(Selection, ANumberOrSlotsOfGpusWhoseDriverFailsIsAnError) {
  HostResources host = cpu_host({"0", "1", "2"});
  EXPECT_THAT(select_ranks({.accelerator = Accelerator::cpu}, host).gpus, IsEmpty());
  host.cuda_problem.text = "the driver is too old";
  EXPECT_EQ(select_ranks({.count = "2"}, host).slots.size(), 2U);
  host.cuda_problem.driver_fails = true;
  for (const RankRequest& request : std::to_array<RankRequest>({{.count = "2"},
                                                                {.count = "gpu"},
                                                                {.include = "localhost:0,1"},
                                                                {.exclude = "localhost:0"}})) {
    EXPECT_THROW(select_ranks(request, host), ConfigError);
  }
  EXPECT_EQ(select_ranks({}, host).note, "the driver is too old: 2 CPU ranks");
  EXPECT_EQ(select_ranks({.count = "auto"}, host).slots.size(), 16U);
  EXPECT_EQ(select_ranks({.count = "cpu"}, host).slots.size(), 16U);
  EXPECT_EQ(select_ranks({.count = "2", .accelerator = Accelerator::cpu}, host).slots.size(), 2U);
}

TEST(Selection, MoreRanksThanGpusShareThemWhereThatIsAllowed) {
  HostResources host = cpu_host({"3"});
  EXPECT_THROW(select_ranks({.count = "2"}, host), ConfigError);
  host.share_gpus = true;
  EXPECT_EQ(select_ranks({.count = "2"}, host), (Selection{.slots = {0, 1}, .gpus = {"3"}}));
}

TEST(CpuList, WritesWhatItReadsUpToWhatIsNoList) {
  for (const char* text : {"", "0", "0-1", "0,2", "0-3,8,10-11"}) {
    EXPECT_EQ(format_cpu_list(parse_cpu_list(text)), text);
  }
  EXPECT_THAT(parse_cpu_list("0-3,8\n"), ElementsAre(0, 1, 2, 3, 8));
  EXPECT_THAT(parse_cpu_list("1,x,2"), ElementsAre(1));
  EXPECT_THAT(parse_cpu_list("-3"), IsEmpty());
  EXPECT_THAT(parse_cpu_list("0-99999999"), IsEmpty());
  EXPECT_THAT(parse_cpu_list("5-2,7"), ElementsAre(7));
  for (const char* text : {"0,,0", "0,", "0-0-0", "0,99999999999"}) {  // nothing is left out
    EXPECT_ERROR(look_at_this_host(Accelerator::cpu, false, text), "expected numbers of CPUs");
  }
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

TEST(ChildAnswer, HasTheStatusAlsoIfTheParentIgnoredItsChildren) {
  signal(SIGCHLD, SIG_IGN);
  const ChildAnswer answer = ask_child([](int /*out*/) { return 7; }, std::chrono::seconds(10));
  EXPECT_EQ(WEXITSTATUS(answer.status), 7);
}

}  // namespace
}  // namespace zerorun::testing
