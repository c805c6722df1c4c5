// What NCCL's ranks say when one of them does not come: one table, and the same as JSON.
#include <stdlib.h>

#include <nlohmann/json.hpp>

#include "tests/comm/nccl/nccl_test.h"

namespace zerorun::testing::nccl_stall {
namespace {

struct NcclStallTest : NcclTest {
  void SetUp() override {
    NcclTest::SetUp();
    setenv("ZERORUN_STALL_FILE", file_.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("ZERORUN_STALL_FILE");
    NcclTest::TearDown();
  }

  // Of three ranks `absent` does not come to 'bucket 9'; the errors of the others must have `what`.
  template <typename Matcher>
  nlohmann::json report_of(int absent, const Matcher& what) {
    std::atomic<int> errors{0};
    ::testing::internal::CaptureStderr();
    on_ranks(3, 300ms, [&](Communicator& communicator, CudaDevice& device) {
      communicator.barrier(device.inline_stream(), "start").synchronize();
      if (communicator.rank() == absent) {
        while (errors < 2) std::this_thread::sleep_for(1ms);
        return;
      }
      EXPECT_ERROR_OF(CommError,
                      communicator.barrier(device.inline_stream(), "bucket 9").synchronize(), what);
      ++errors;
    });
    const std::string text = ::testing::internal::GetCapturedStderr();
    const size_t first = text.find("stands still");
    EXPECT_NE(first, std::string::npos) << text;
    EXPECT_EQ(text.find("stands still", first + 1), std::string::npos) << text;
    EXPECT_THAT(text, HasSubstr("waits for rank " + std::to_string(absent)));
    return nlohmann::json::parse(std::ifstream(file_));
  }

  void expect_report(int absent) {
    const std::string late = "rank " + std::to_string(absent) + " ";
    const nlohmann::json report =
        report_of(absent, HasAll("barrier 'bucket 9'", late, "outside of collectives"));
    ASSERT_EQ(report["ranks"].size(), 3);
    for (int rank = 0; rank < 3; ++rank) {
      const nlohmann::json& entry = report["ranks"][rank];
      EXPECT_EQ(entry["rank"], rank);
      if (rank == absent) {
        EXPECT_THAT(entry["last_operation"], HasSubstr("'start'"));
        EXPECT_THAT(entry["state"], HasSubstr("outside of collectives"));
      } else {
        EXPECT_EQ(entry["state"], "waits");
        EXPECT_EQ(entry["waits_for"], absent);
        EXPECT_THAT(entry["last_operation"], HasSubstr("'bucket 9'"));
      }
    }
  }

  const Scratch scratch_;
  const std::string file_ = scratch_.path("stall.json");
};

// Rank 0 prints the report that others ask for.
TEST_F(NcclStallTest, OneTableShowsWhoWaitsAndWhereTheRankIsThatDoesNotCome) {
  for (const int absent : {2, 0}) expect_report(absent);
}

// Rank 0 waits for rank 1, which waits for rank 3, which waits for rank 2: all ask at once, and
// each has one thread with which it answers, too.
TEST_F(NcclStallTest, RanksThatAskInSeveralGroupsAnswerInAll) {
  std::atomic<int> errors{0};
  std::barrier all(4);
  std::array<int64_t, 4> more{};
  ::testing::internal::CaptureStderr();
  on_ranks(4, 1500ms, [&](Communicator& world, CudaDevice& device) {
    const int rank = world.rank();
    const auto barrier = [&](Communicator& group) {
      group.barrier(device.inline_stream(), "bucket 9").synchronize();
    };
    barrier(world);
    all.arrive_and_wait();
    const int64_t before = entries("/proc/self/task");
    all.arrive_and_wait();
    const auto row = world.split(rank / 2, 0, "row");
    const auto column = world.split(rank % 2, 0, "column");
    barrier(*row);
    barrier(*column);
    all.arrive_and_wait();
    more[static_cast<size_t>(rank)] = entries("/proc/self/task") - before;
    all.arrive_and_wait();
    if (rank == 2) {
      while (errors < 3) std::this_thread::sleep_for(1ms);
      return;
    }
    EXPECT_THROW(barrier(rank == 1 ? *column : *row), CommError);
    ++errors;
  });
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasAll("stands still", Not(HasSubstr("did not answer"))));
  EXPECT_THAT(more, ::testing::Each(::testing::Le(0)));
}

}  // namespace
}  // namespace zerorun::testing::nccl_stall
