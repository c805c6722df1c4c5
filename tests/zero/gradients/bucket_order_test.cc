// The order in which buckets are reduced, and modules gathered.
#include "tests/zero/toy_run.h"
#include "tests/zero/wrapped_communicator.h"
#include "zero/gradients/gradient_batch.h"
#include "zero/memory_plan.h"
#include "zero/parameters/parameter_gatherer.h"

namespace zerorun::testing::bucket_order {
namespace {

constexpr int kLayers = 8;

// As BERT has it: the last module that is registered is never used.
std::vector<ParameterSpec> with_unused_pooler() {
  std::vector<ParameterSpec> specs;
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string module = "h." + std::to_string(layer);
    specs.push_back({module + ".weight", {64, 64}, module, 0, true, ""});
  }
  specs.push_back({"pooler.weight", {64, 64}, "pooler", 0, true, ""});
  return specs;
}

class UnusedPoolerTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Stages, UnusedPoolerTest, ::testing::Values(1, 2, 3));

TEST_P(UnusedPoolerTest, HoldsNothingBackFromTheSecondStepOn) {
  Config config;
  config.zero.stage = GetParam();
  config.zero.reduce_bucket_size = 64 * 64;
  config.zero.param_persistence_threshold = 0;
  const MemoryPlan plan = plan_memory(config, with_unused_pooler(), {2, 2, true});
  run_engines({config, 2, {}, with_unused_pooler()}, [&](Engine& engine, Communicator& comm) {
    for (int step = 0; step < 3; ++step) {
      const CommStats before = comm.stats();
      for (int layer = kLayers; layer-- > 0;) {
        give_gradient(engine, layer, 1);
        const int64_t gone = since(before, comm)[Collective::reduce_scatter].calls;
        EXPECT_EQ(gone, step == 0 ? 0 : kLayers - layer) << "step " << step;
        if (step > 0) {
          EXPECT_LE(static_cast<double>(live_bytes(engine, MemoryCategory::buckets)),
                    1.03 * static_cast<double>(plan.buckets + plan.gathered));
        }
      }
      engine.end_micro_step();
      engine.step();
    }
  });
}

// A transport on which gathers need the other ranks, as NCCL is.
struct BlindCommunicator final : WrappedCommunicator {
  using WrappedCommunicator::WrappedCommunicator;
  bool reads_peers() const override { return false; }
};

TEST(GatherOrders, ThatDifferEndAtTheStepOnEveryRank) {
  Config config = gathering_config(3);
  config.zero.prefetch_bucket_size = 0;
  const auto connect = [](CommunicatorOptions& options) {
    return std::make_shared<BlindCommunicator>(connect_on_cpu(options));
  };
  for (const bool differ : {false, true}) {
    run_engines({.config = config, .connect = connect}, [&](Engine& engine, Communicator& comm) {
      std::vector<std::string> modules = {"h.0", "expert"};
      if (differ && comm.rank() == 1) std::reverse(modules.begin(), modules.end());
      for (const std::string& module : modules) visit(engine, module);
      for (const ParameterId id : trainable(engine)) contribute(engine, id, comm.rank(), 0, 0);
      engine.end_micro_step();
      const std::string error = error_of<CommError>([&] { engine.step(); });
      EXPECT_THAT(error, HasSubstr(differ ? "ranks used different modules" : ""));
      EXPECT_EQ(error.empty(), !differ);
    });
  }
}

// A step in which the buckets of `arrivals` were complete; returns whether it asks for a new order,
// which then is taken over.
bool step(BucketSchedule& schedule, const std::vector<int>& arrivals) {
  for (const int bucket : arrivals) schedule.arrived(bucket);
  schedule.end_round(true);
  const bool change = schedule.wants_change();
  schedule.end_batch(change ? schedule.proposal() : std::vector<int64_t>{});
  return change;
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
}  // namespace zerorun::testing::bucket_order
