#include "tests/common.h"
#include "zero/parameters/parameter_gatherer.h"

namespace zerorun {
namespace {

// Forward over modules 0..2, then backward.
void pass(GatherOrder& order) {
  for (ModuleId module : {0, 1, 2, 2, 1, 0}) order.record(module);
}

using Modules = std::vector<ModuleId>;

TEST(GatherOrder, PredictsForwardAndBackwardAfterOnePassAlsoIfEvaluationsCameBetween) {
  for (const int evaluations : {0, 3}) {
    GatherOrder order({10, 100, 1000});
    order.record(0);
    EXPECT_TRUE(order.predict(4).empty());
    for (int i = 0; i < 2; ++i) pass(order);
    for (int i = 0; i < evaluations; ++i) {
      for (ModuleId module : {0, 1, 2}) order.record(module);  // forward only
    }
    if (evaluations > 0) pass(order);
    order.record(0);
    order.record(1);
    EXPECT_EQ(order.predict(3), (Modules{2, 2, 1}));
    EXPECT_EQ(order.reuse_distance(1), 2000);  // 2, 2, then 1 again
    order.record(2);
    EXPECT_EQ(order.reuse_distance(2), 0);
    order.record(2);
    EXPECT_EQ(order.predict(2), (Modules{1, 0}));
  }
}

TEST(GatherOrder, LooksBeyondTheEndOfAMicroStepOnlyWhenAsked) {
  GatherOrder order({10, 100, 1000});
  for (int i = 0; i < 3; ++i) {
    pass(order);
    if (i < 2) order.end_micro_step();
  }
  EXPECT_EQ(order.predict(3), (Modules{0, 1}));
  EXPECT_TRUE(order.predict(3, /*beyond_end=*/false).empty());
  order.end_micro_step();
  EXPECT_EQ(order.predict(2, /*beyond_end=*/false), (Modules{0, 1}));
}

TEST(GatherOrder, ReuseDistanceFallsAsOtherModulesAreUsed) {
  GatherOrder order({10, 100, 1000});
  pass(order);
  order.record(0);
  order.record(1);
  order.record(2);
  EXPECT_EQ(order.reuse_distance(1), 1000);
  for (int i = 0; i < 3; ++i) order.record(0);  // not what came the last time
  order.record(2);
  order.record(2);
  EXPECT_EQ(order.reuse_distance(1), std::nullopt);
}

// A walk over the modules to come would take minutes.
TEST(GatherOrder, ReuseDistanceOfManyModulesIsKnownAtOnce) {
  constexpr int kModules = 50'000;
  GatherOrder order(std::vector<int64_t>(kModules, 1));
  for (int pass = 0; pass < 3; ++pass) {
    for (ModuleId module = 0; module < kModules; ++module) {
      order.record(module);
      const std::optional<int64_t> distance = order.reuse_distance(module);
      EXPECT_EQ(distance == kModules - 1, pass > 0 && (pass > 1 || module > 0));
    }
  }
}

}  // namespace
}  // namespace zerorun
