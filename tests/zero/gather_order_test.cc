#include "zero/gather_order.h"

#include <gtest/gtest.h>

namespace zerorun {
namespace {

// Forward over modules 0..2, then backward.
void pass(GatherOrder& order) {
  for (ModuleId module : {0, 1, 2, 2, 1, 0}) order.record(module);
}

TEST(GatherOrder, KnowsNothingBeforeTheFirstPass) {
  GatherOrder order;
  EXPECT_TRUE(order.predict(4).empty());
  order.record(0);
  EXPECT_TRUE(order.predict(4).empty());
}

TEST(GatherOrder, PredictsForwardAndBackwardAfterOnePass) {
  GatherOrder order;
  pass(order);
  pass(order);
  order.record(0);
  order.record(1);
  EXPECT_EQ(order.predict(3), (std::vector<ModuleId>{2, 2, 1}));
  order.record(2);
  order.record(2);
  EXPECT_EQ(order.predict(2), (std::vector<ModuleId>{1, 0}));
}

TEST(GatherOrder, EvaluationBetweenStepsDoesNotForgetTraining) {
  GatherOrder order;
  pass(order);
  pass(order);
  for (int i = 0; i < 3; ++i) {
    for (ModuleId module : {0, 1, 2}) order.record(module);  // forward only
  }
  pass(order);
  order.record(0);
  order.record(1);
  EXPECT_EQ(order.predict(3), (std::vector<ModuleId>{2, 2, 1}));
}

TEST(GatherOrder, ReuseDistanceCountsElementsInBetween) {
  GatherOrder order;
  pass(order);
  pass(order);
  const std::vector<int64_t> numels = {10, 100, 1000};
  order.record(0);
  order.record(1);
  EXPECT_EQ(order.reuse_distance(1, numels), 2000);  // 2, 2, then 1 again
  order.record(2);
  EXPECT_EQ(order.reuse_distance(2, numels), 0);
  EXPECT_EQ(GatherOrder().reuse_distance(0, numels), std::nullopt);
}

}  // namespace
}  // namespace zerorun
