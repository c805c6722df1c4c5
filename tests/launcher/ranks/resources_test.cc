#include "launcher/ranks/resources.h"

#include "tests/common.h"
#include "tests/error_of.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

const auto kUnset = std::nullopt;

struct GpuCase {
  const char* label;
  std::optional<std::string> visible;  // CUDA_VISIBLE_DEVICES
  int machine;                         // GPUs in it
  RankRequest request;
  std::string expected;  // the ranks' GPUs or, after "error: ", a part of it
};

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
     {"count beyond",
      kUnset,
      2,
      {.count = "1000000", .accelerator = Accelerator::cpu},
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
     {"gpu count, cpu ranks",
      kUnset,
      4,
      {.count = "gpu", .accelerator = Accelerator::cpu},
      "error: contradicts"},
     {"cpu count, cuda ranks",
      kUnset,
      4,
      {.count = "cpu", .accelerator = Accelerator::cuda},
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

}  // namespace
}  // namespace zerorun
