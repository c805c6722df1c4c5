#include "checkpoint/loading/record_runs.h"
#include "tests/common.h"

namespace zerorun {
namespace {

TEST(WorkersTest, EveryItemIsDoneOnce) {
  Workers workers(4);
  for (const size_t count : {0U, 1U, 3U, 1000U}) {
    std::vector<std::atomic<int>> done(count);
    workers.each(count, [&](size_t i) { ++done[i]; });
    for (const std::atomic<int>& times : done) EXPECT_EQ(times, 1);
  }
}

TEST(WorkersTest, TheErrorIsThatOfTheFirstItemAndLaterCallsStillWork) {
  Workers workers(4);
  for (int round = 0; round < 200; ++round) {
    const auto fail_some = [](size_t i) {
      if (i % 30 == 17) throw std::runtime_error(std::to_string(i));
    };
    EXPECT_THAT([&] { workers.each(100, fail_some); },
                ThrowsMessage<std::runtime_error>(::testing::Eq("17")));
  }
  std::atomic<int> sum = 0;
  workers.each(10, [&](size_t i) { sum += static_cast<int>(i); });
  EXPECT_EQ(sum, 45);
}

}  // namespace
}  // namespace zerorun
