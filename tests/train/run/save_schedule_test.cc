#include "tests/common.h"
#include "train/run/run.h"

namespace zerorun::train {
namespace {

// The steps that are saved when a save that begins after step `s` is written for `busy` more steps.
std::vector<int64_t> saved_steps(SaveSchedule& schedule, int64_t steps, int64_t busy) {
  std::vector<int64_t> saved;
  for (int64_t step = 1; step <= steps; ++step) {
    const bool is_free = saved.empty() || step > saved.back() + busy;
    if (!schedule.is_time(step, is_free)) continue;
    schedule.saved(step);
    saved.push_back(step);
  }
  return saved;
}

TEST(SaveSchedule, SavesAtEachMultipleWhenTheDiskKeepsUp) {
  SaveSchedule schedule(3, 0);
  EXPECT_THAT(saved_steps(schedule, 10, 2), ElementsAre(3, 6, 9));
  EXPECT_EQ(schedule.due(), 3);
  EXPECT_EQ(schedule.put_off(), 0);
  EXPECT_EQ(schedule.last_step(), 9);
}

TEST(SaveSchedule, APutOffSaveComesWithTheFirstFreeStepAndStandsForThoseMeanwhile) {
  SaveSchedule every_step(1, 0);
  EXPECT_THAT(saved_steps(every_step, 10, 3), ElementsAre(1, 5, 9));
  EXPECT_EQ(every_step.due(), 10);
  EXPECT_EQ(every_step.put_off(), 7);

  SaveSchedule seldom(4, 0);  // 8 falls due while 4 is written, until after 9
  EXPECT_THAT(saved_steps(seldom, 15, 5), ElementsAre(4, 10));
  EXPECT_EQ(seldom.put_off(), 2);  // and 12
}

TEST(SaveSchedule, WhatIsKeptIsSavedAtItsOwnStep) {
  SaveSchedule schedule(2, 4);
  EXPECT_THAT(saved_steps(schedule, 12, 100), ElementsAre(2, 4, 8, 12));
  EXPECT_EQ(schedule.put_off(), 2);
  SaveSchedule not_due(3, 4);  // keep_every saves nothing by itself
  EXPECT_THAT(saved_steps(not_due, 12, 0), ElementsAre(3, 6, 9, 12));
}

TEST(SaveSchedule, NothingIsEverDueWithoutAnInterval) {
  SaveSchedule schedule(0, 2);
  EXPECT_THAT(saved_steps(schedule, 5, 0), ElementsAre());
  EXPECT_EQ(schedule.last_step(), -1);
}

}  // namespace
}  // namespace zerorun::train
