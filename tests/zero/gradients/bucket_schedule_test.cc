#include "tests/common.h"
#include "zero/gradients/gradient_batch.h"

namespace zerorun {
namespace {

// A step in which the buckets of `arrivals` were complete; returns whether it asks for a new order,
// which then is taken over.
bool step(BucketSchedule& schedule, const std::vector<int>& arrivals) {
  for (const int bucket : arrivals) schedule.arrived(bucket);
  schedule.end_round(true);
  const bool change = schedule.wants_change();
  schedule.end_batch(change ? schedule.proposal() : std::vector<int64_t>{});
  return change;
}

TEST(BucketSchedule, PutsWhatWasNotCompleteLast) {
  BucketSchedule schedule({0, 1, 2, 3});
  EXPECT_TRUE(step(schedule, {1, 3, 2}));
  EXPECT_EQ(schedule.order(), (std::vector<int>{1, 3, 2, 0}));
  EXPECT_FALSE(step(schedule, {1, 3, 2}));
}

TEST(BucketSchedule, KeepsAnOrderThatFits) {
  BucketSchedule schedule({0, 1, 2});
  EXPECT_FALSE(step(schedule, {0, 1, 2}));
  EXPECT_FALSE(step(schedule, {0, 1}));
}

TEST(BucketSchedule, ChangesAgainForAnOrderThatCameTwiceInARow) {
  BucketSchedule schedule({0, 1, 2});
  EXPECT_TRUE(step(schedule, {1, 0, 2}));
  EXPECT_FALSE(step(schedule, {2, 1, 0}));
  EXPECT_FALSE(step(schedule, {0, 1, 2}));
  EXPECT_FALSE(step(schedule, {2, 1, 0}));
  EXPECT_TRUE(step(schedule, {2, 1, 0}));
  EXPECT_EQ(schedule.order(), (std::vector<int>{2, 1, 0}));
}

TEST(BucketSchedule, ARoundThatTeachesNothingLeavesWhatWasLearned) {
  BucketSchedule schedule({0, 1});
  schedule.arrived(1);
  schedule.end_round(true);
  schedule.end_round(false);
  EXPECT_EQ(schedule.proposal(), (std::vector<int64_t>{1, 0}));
}

TEST(BucketSchedule, GoesThroughItsOrderInEachRound) {
  BucketSchedule schedule({1, 0});
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(schedule.next(), 1);
    schedule.advance();
    EXPECT_EQ(schedule.next(), 0);
    schedule.advance();
    EXPECT_EQ(schedule.next(), std::nullopt);
    schedule.end_round(false);
  }
}

}  // namespace
}  // namespace zerorun
