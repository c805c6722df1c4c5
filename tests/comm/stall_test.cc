// A job that stands still says this: one table, and the same for programs.
#include <stdlib.h>

#include <nlohmann/json.hpp>

#include "comm/rendezvous/store_server.h"
#include "comm/stall_report.h"
#include "tests/comm/processes.h"

namespace zerorun::testing::stall_test {
namespace {

constexpr int kRanks = 4;
constexpr auto kTimeout = 3s;

struct StallTest : ::testing::Test {
  void SetUp() override { setenv("ZERORUN_STALL_FILE", file_.c_str(), 1); }
  void TearDown() override { unsetenv("ZERORUN_STALL_FILE"); }

  // Rank 3 does not come to the second barrier; returns the JSON. `text`: standard error.
  nlohmann::json report_of(const HostOf& host_of, int stop, std::string& text) {
    ::testing::internal::CaptureStderr();
    const World world{.ranks = kRanks, .host_of = host_of, .timeout = kTimeout};
    Processes ranks(world, [](Communicator& communicator, Shared& shared) {
      barrier(communicator, "together");
      ++shared.progress;
      if (communicator.rank() == 3) await(shared.progress, 1000);  // it never comes
      return error_of_barrier(communicator, "bucket 7");
    });
    if (stop >= 0) {
      await(ranks.shared().progress, kRanks);
      ranks.send(stop, SIGSTOP);
    }
    std::string first;
    for (int rank = 0; rank < 3; ++rank) {
      const std::string error = ranks.result(rank);
      if (rank == 0) first = error;
      EXPECT_EQ(error, first);
      EXPECT_THAT(error, HasAll("waited", "'bucket 7'"));
    }
    text = ::testing::internal::GetCapturedStderr();
    return nlohmann::json::parse(std::ifstream(file_));
  }

  const Scratch scratch_;
  const std::string file_ = scratch_.path("stall.json");
};

size_t count(const std::string& text, const std::string& what) {
  size_t found = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

// A handler may run while a rank is in a function that uses a block of the heap as its stack.
TEST_F(StallTest, RanksHandleNoSignalForTheReport) {
  Processes ranks(2, [](Communicator& communicator, Shared&) -> std::string {
    barrier(communicator, "together");
    for (int signal = SIGRTMIN; signal <= SIGRTMAX; ++signal) {
      struct sigaction action {};
      sigaction(signal, nullptr, &action);
      if (action.sa_handler != SIG_DFL) return "handles signal " + std::to_string(signal);
    }
    return "handles none";
  });
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.result(rank), "handles none");
}

TEST_F(StallTest, ARankThatWasStoppedIsSaidToBe) {
  std::string text;
  const nlohmann::json report = report_of(nullptr, 3, text);
  EXPECT_EQ(count(text, "stands still"), 1) << text;
  EXPECT_THAT(report["ranks"][3]["state"], HasSubstr("is stopped"));
  EXPECT_THAT(text, HasSubstr("shows no Python stack"));
}

TEST_F(StallTest, OneOfTheRanksOfAHostThatWaitSaysItForAll) {
  ::testing::internal::CaptureStderr();
  Processes ranks(kRanks, [](Communicator& communicator, Shared&) -> std::string {
    if (communicator.rank() == 3) std::this_thread::sleep_for(10500ms);
    barrier(communicator, "late");
    return "came";
  });
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(ranks.result(rank), "came");
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(count(text, "waited"), 1) << text;
  EXPECT_THAT(text, HasSubstr("rank 0 and 2 more have waited 10 s in barrier"));
}

TEST_F(StallTest, OneTableShowsTheRanksOfAllHosts) {
  for (const int ranks_of_host : {2, 1}) {
    std::string text;
    const nlohmann::json report = report_of(hosts_of(ranks_of_host), -1, text);
    EXPECT_EQ(count(text, "stands still"), 1) << text;
    EXPECT_THAT(text, HasAll("outside of collectives", file_));
    ASSERT_EQ(report["ranks"].size(), kRanks);
    const nlohmann::json& stuck = report["ranks"][3];
    EXPECT_TRUE(stuck["waits_for"].is_null());
    EXPECT_EQ(stuck["label"], "together");
    EXPECT_THAT(stuck["last_operation"], HasSubstr("barrier #1 'together'"));
    if (ranks_of_host == 1) continue;
    for (int number = 0; number < 3; ++number) {
      const nlohmann::json& rank = report["ranks"][number];
      EXPECT_EQ(rank["state"], "waits");
      EXPECT_EQ(rank["label"], "bucket 7");
      EXPECT_THAT(rank["last_operation"], HasSubstr("barrier #2"));
      EXPECT_GE(rank["waited_s"], 2.5);
    }
    EXPECT_EQ(report["ranks"][2]["waits_for"], 3);
  }
}

TEST_F(StallTest, ActivitiesSurviveTheirWayThroughTheStore) {
  const RankActivity rank{.rank = 5,
                          .pid = 77,
                          .host = "b",
                          .state = "waits",
                          .operation = "barrier #2 'x'",
                          .label = "x",
                          .waits_for = 3,
                          .waited_s = 12.5,
                          .python_stacks = "f\nno utf-8: \xff\n"};
  EXPECT_THAT(
      decode_activities(encode_activities({rank})),
      ElementsAre(::testing::FieldsAre(5, 77, "b", "waits", rank.operation, "x", std::optional(3),
                                       12.5, StartsWith("f\nno utf-8: "))));
  // Of as many ranks as a host may have, all with long texts.
  RankActivity busy{.host = std::string(64, 'h'),
                    .state = "sleeps, outside of collectives",
                    .operation = std::string(150, 'o'),
                    .label = std::string(63, 'l')};
  for (int line = 0; line < 1000; ++line) busy.python_stacks += "  File \"a.py\", line 1 in f\n";
  EXPECT_LE(encode_activities(std::vector(1024, busy)).size(), store_protocol::kMaxBytes - 100);
  EXPECT_THROW(decode_activities("[{}]"), CommError);
  EXPECT_THROW(decode_activities("nothing"), CommError);
}

TEST_F(StallTest, AJobOfManyRanksShowsSomeOfThoseThatWait) {
  std::vector<RankActivity> ranks(900);
  for (int number = 0; number < 900; ++number) {
    ranks[static_cast<size_t>(number)].rank = number;
    if (number != 700) ranks[static_cast<size_t>(number)].waits_for = 700;
  }
  CommunicatorOptions options;
  options.world_size = 1000;
  const std::string table = StallReport("rank 0 waited", GroupOptions(options), ranks).table();
  EXPECT_THAT(table, HasAll("and 867 more ranks that wait", "\n   700  ",
                            "100 ranks are on hosts that did not answer"));
  EXPECT_LT(count(table, "\n"), 45U);
}

TEST_F(StallTest, AGroupSaysThatItsRanksAreNotAll) {
  std::vector<RankActivity> ranks(2);
  ranks[0].rank = 2;
  ranks[1].rank = 3;
  CommunicatorOptions options;
  options.world_size = 2;
  GroupOptions group(options);
  group.job_size = 8;
  const StallReport report("rank 2 waited", group, ranks);
  EXPECT_THAT(report.table(), HasSubstr("these are the 2 ranks of the group; the job has 8"));
  EXPECT_EQ(nlohmann::json::parse(report.json()).at("job_size"), 8);
}

}  // namespace
}  // namespace zerorun::testing::stall_test
