#include "launcher/ranks/resources.h"

#include <ostream>

#include "tests/common.h"
#include "tests/error_of.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

// One row: what is there and asked for, and the ranks' GPUs or, after "error: ", a part of it.
struct GpuCase {
  std::string label;
  std::optional<std::string> visible;  // CUDA_VISIBLE_DEVICES
  int machine;                         // GPUs in it
  RankRequest request;
  std::string expected;
};

void PrintTo(const GpuCase& row, std::ostream* out) { *out << row.label; }

class GpuSelection : public ::testing::TestWithParam<GpuCase> {};

TEST_P(GpuSelection, IncludeExcludeAndCountIndexTheVisibleDevices) {
  const GpuCase& row = GetParam();
  HostResources host;
  host.name = "worker-1.cluster";
  host.gpus = visible_gpus(row.visible, row.machine);
  if (row.expected.starts_with("error: ")) {
    EXPECT_THAT(error_of<ConfigError>([&] { select_ranks(row.request, host); }),
                HasSubstr(row.expected.substr(7)));
    return;
  }
  const Selection selection = select_ranks(row.request, host);
  EXPECT_EQ(fmt::format("{}", fmt::join(selection.gpus, " ")), row.expected);
  EXPECT_EQ(selection.slots.size(), selection.gpus.size());
  EXPECT_EQ(selection.note, "");
}

RankRequest count(std::string number, Accelerator accelerator = Accelerator::automatic) {
  return {.count = std::move(number), .accelerator = accelerator};
}
RankRequest include(std::string filter) { return {.include = std::move(filter)}; }
RankRequest exclude(std::string filter) { return {.exclude = std::move(filter)}; }

const auto kUnset = std::nullopt;

INSTANTIATE_TEST_SUITE_P(
    Table, GpuSelection,
    ::testing::ValuesIn(std::to_array<GpuCase>(
        {{"all of the machine", kUnset, 4, {}, "0 1 2 3"},
         {"all visible", "4,5", 8, {}, "4 5"},
         {"visible order is kept", "7,2,5", 8, {}, "7 2 5"},
         {"blanks in the list", " 1 , 3", 4, {}, "1 3"},
         {"list ends at -1", "0,1,-1,2", 4, {}, "0 1"},
         {"list ends at an unknown index", "1,9,2", 4, {}, "1"},
         {"uuids pass through", "GPU-8932f937,GPU-12", 8, {}, "GPU-8932f937 GPU-12"},
         {"mig pass through", "MIG-a/1/0,MIG-b", 1, {}, "MIG-a/1/0 MIG-b"},
         {"count", kUnset, 4, count("2"), "0 1"},
         {"count of visible", "6,7,1", 8, count("2"), "6 7"},
         {"count auto", "6,7", 8, count("auto"), "6 7"},
         {"count gpu", "6,7", 8, count("gpu"), "6 7"},
         {"count -1 is all", "6,7", 8, count("-1"), "6 7"},
         {"count too high", "6,7", 8, count("3"), "error: offers 2 GPUs (6,7)"},
         {"count zero", kUnset, 2, count("0"), "error: --num_gpus '0'"},
         {"count negative", kUnset, 2, count("-2"), "error: --num_gpus '-2'"},
         {"count no number", kUnset, 2, count("2x"), "error: --num_gpus '2x'"},
         {"include slots", kUnset, 4, include("localhost:0,2"), "0 2"},
         {"include indexes visible", "4,5,6", 8, include("localhost:0,2"), "4 6"},
         {"include uuid", "GPU-a,GPU-b", 8, include("localhost:1"), "GPU-b"},
         {"include sorts, drops copies", "4,5,6", 8, include("localhost:2,0,2"), "4 6"},
         {"include one slot twice", "4,5", 8, include("localhost:0,0"), "4"},
         {"include blanks", "4,5", 8, include(" localhost : 0 , 1 "), "4 5"},
         {"include host and slot", "4,5", 8, include("localhost@localhost:0"), "4 5"},
         {"include only blanks", "4,5", 8, include(" "), "error: expected HOST"},
         {"exclude no slot", "4,5", 8, exclude("localhost:"), "error: names no slot after"},
         {"include the host", "4,5", 8, include("localhost"), "4 5"},
         {"include by name", kUnset, 2, include("worker-1.cluster:1"), "1"},
         {"include by short name", kUnset, 2, include("worker-1:1"), "1"},
         {"include twice", kUnset, 4, include("localhost:3@localhost:1"), "1 3"},
         {"include beyond", "4,5", 8, include("localhost:4"), "error: slot 4, but this host has 2"},
         {"include other host", kUnset, 2, include("worker-2:0"),
          "error: which no --hostfile lists"},
         {"include no slot", kUnset, 2, include("localhost:"), "error: names no slot after"},
         {"include an empty slot", kUnset, 2, include("localhost:0,"),
          "error: slot '' is not a number"},
         {"include range", kUnset, 4, include("localhost:0-2"), "error: slot '0-2'"},
         {"include negative", kUnset, 4, include("localhost:-1"), "error: slot '-1'"},
         {"include huge", kUnset, 4, include("localhost:99999999999"), "error: not a number"},
         {"include no host", kUnset, 2, include(":0"), "error: expected HOST"},
         {"include empty part", kUnset, 2, include("localhost:0@"), "error: expected HOST"},
         {"exclude slot", "4,5,6", 8, exclude("localhost:1"), "4 6"},
         {"exclude all slots", "4,5", 8, exclude("localhost:0,1"), "error: leaves no GPU"},
         {"exclude the host", "4,5", 8, exclude("localhost"), "error: leaves no GPU"},
         {"exclude beyond", "4,5", 8, exclude("localhost:2"), "error: --exclude"},
         {"both filters",
          kUnset,
          4,
          {.include = "localhost:0", .exclude = "localhost:1"},
          "error: mutually exclusive"},
         {"count and filter",
          kUnset,
          4,
          {.count = "1", .include = "localhost:0"},
          "error: cannot be combined with --include"},
         {"cuda asked for, hidden", "", 4, count("", Accelerator::cuda), "error: shows none"},
         {"cuda asked for, none", kUnset, 0, count("", Accelerator::cuda), "error: shows none"},
         {"gpu count, none", kUnset, 0, count("gpu"), "error: shows none"},
         {"gpu count, cpu ranks", kUnset, 4, count("gpu", Accelerator::cpu), "error: contradicts"},
         {"cpu count, cuda ranks", kUnset, 4, count("cpu", Accelerator::cuda),
          "error: contradicts"}})));

HostResources cpu_host() {
  HostResources host;
  host.name = "laptop";
  host.cpus = 16;
  host.numa_nodes = 2;
  return host;
}

struct CpuCase {
  std::string label;
  RankRequest request;
  int ranks;
  std::string note;
};

void PrintTo(const CpuCase& row, std::ostream* out) { *out << row.label; }

class CpuSelection : public ::testing::TestWithParam<CpuCase> {};

TEST_P(CpuSelection, CountsRanksAndSaysSoUnlessAsked) {
  const CpuCase& row = GetParam();
  const Selection selection = select_ranks(row.request, cpu_host());
  EXPECT_EQ(static_cast<int>(selection.slots.size()), row.ranks);
  EXPECT_EQ(selection.note, row.note);
  EXPECT_TRUE(selection.gpus.empty());
  EXPECT_EQ(selection.none_found, !row.note.empty());  // unless CPU ranks are asked for
}

INSTANTIATE_TEST_SUITE_P(
    Table, CpuSelection,
    ::testing::Values(
        CpuCase{"one per NUMA node", {}, 2, "no GPU found: 2 CPU ranks"},
        CpuCase{"count", count("1"), 1, "no GPU found: 1 CPU rank"},
        CpuCase{"more than CPUs", count("40"), 40,
                "no GPU found: 40 CPU ranks share 16 CPUs; a job is fastest with at most one rank "
                "for each CPU"},
        CpuCase{"auto", count("auto"), 16, "no GPU found: 16 CPU ranks"},
        CpuCase{"cpu", count("cpu"), 16, ""},
        CpuCase{"asked for", {.count = "17", .accelerator = Accelerator::cpu}, 17, ""},
        CpuCase{"include counts slots", include("localhost:0,2"), 2, "no GPU found: 2 CPU ranks"},
        CpuCase{"include drops copies", include("localhost:5,5"), 1, "no GPU found: 1 CPU rank"},
        CpuCase{"include the host", include("laptop"), 2, "no GPU found: 2 CPU ranks"},
        CpuCase{"exclude", exclude("localhost:0"), 1, "no GPU found: 1 CPU rank"}));

TEST(Selection, WithoutCudaBackendGpusAreNotUsed) {
  HostResources host = cpu_host();
  host.gpus = {"0", "1", "2"};
  host.cuda_problem.text = "this build has no CUDA backend";
  const Selection selection = select_ranks({}, host);
  EXPECT_TRUE(selection.gpus.empty());
  EXPECT_EQ(selection.note, "this build has no CUDA backend: 2 CPU ranks");
  EXPECT_FALSE(selection.none_found);
  EXPECT_THROW(select_ranks({.accelerator = Accelerator::cuda}, host), ConfigError);
}

// The host shows GPUs, so a number means them; without one, whatever there is will do.
TEST(Selection, ANumberOrSlotsOfGpusWhoseDriverFailsIsAnError) {
  HostResources host = cpu_host();
  host.gpus = {"0", "1", "2"};
  host.cuda_problem.text = "the driver is too old";
  EXPECT_EQ(select_ranks(count("2"), host).slots.size(), 2U);
  host.cuda_problem.driver_fails = true;
  for (const RankRequest& request :
       {count("2"), count("gpu"), include("localhost:0,1"), exclude("localhost:0")}) {
    EXPECT_THROW(select_ranks(request, host), ConfigError);
  }
  EXPECT_EQ(select_ranks({}, host).note, "the driver is too old: 2 CPU ranks");
  EXPECT_EQ(select_ranks(count("auto"), host).slots.size(), 16U);
  EXPECT_EQ(select_ranks(count("cpu"), host).slots.size(), 16U);
  EXPECT_EQ(select_ranks({.count = "2", .accelerator = Accelerator::cpu}, host).slots.size(), 2U);
}

TEST(Selection, MoreRanksThanGpusShareThemWhereThatIsAllowed) {
  HostResources host = cpu_host();
  host.gpus = {"3"};
  EXPECT_THROW(select_ranks(count("2"), host), ConfigError);
  host.share_gpus = true;
  EXPECT_EQ(select_ranks(count("2"), host), (Selection{.slots = {0, 1}, .gpus = {"3"}}));
}

TEST(Selection, CpuRanksUseNoGpuThatIsThere) {
  HostResources host = cpu_host();
  host.gpus = {"0", "1", "2"};
  EXPECT_TRUE(select_ranks({.accelerator = Accelerator::cpu}, host).gpus.empty());
}

TEST(Selection, RefusesAbsurdCounts) {
  EXPECT_THROW(select_ranks(count("1000000"), cpu_host()), ConfigError);
  EXPECT_THROW(select_ranks(count("99999999999999"), cpu_host()), ConfigError);
}

}  // namespace
}  // namespace zerorun
