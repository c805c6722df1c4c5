#include "zero/partition/partition.h"

#include "tests/common.h"
#include "zero/memory_plan.h"

namespace zerorun {
namespace {

struct Model {
  std::vector<ParameterSpec> specs;
  std::vector<int64_t> numels;
  std::vector<ModuleId> modules;
  void add(int64_t numel, ModuleId module, bool trainable = true) {
    ParameterSpec spec;
    spec.name = "p" + std::to_string(specs.size());
    spec.trainable = trainable;
    specs.push_back(spec);
    numels.push_back(numel);
    modules.push_back(module);
  }
  std::vector<BucketPlan> plan(const ZeroConfig& zero) const {
    return plan_buckets(specs, numels, modules, zero);
  }
};

TEST(Buckets, ComeInTheOrderInWhichBackwardCompletesThemAndAreOfOneKind) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    Model model;
    for (int i = 0; i < 20; ++i) {
      // 100, the threshold itself, stays gathered, as in DeepSpeed.
      const int64_t numel = random() % 4 == 0 ? 100 : 1 + static_cast<int64_t>(random() % 300);
      model.add(numel, i / 4, random() % 4 != 0);
    }
    ZeroConfig zero;
    zero.stage = static_cast<int>(random() % 4);
    zero.reduce_bucket_size = 1 + static_cast<int64_t>(random() % 1000);
    zero.param_persistence_threshold = 100;
    std::set<ParameterId> seen;
    ParameterId last = 1000;
    for (const BucketPlan& plan : model.plan(zero)) {
      EXPECT_LT(plan.parameters.front().parameter, last);
      last = plan.parameters.front().parameter;
      int64_t numel = 0;
      for (const SizedParameter& parameter : plan.parameters) {
        const auto id = static_cast<size_t>(parameter.parameter);
        EXPECT_TRUE(seen.insert(parameter.parameter).second);
        EXPECT_EQ(plan.shard_params, zero.stage == 3 && parameter.numel > 100);
        EXPECT_EQ(plan.trainable, model.specs[id].trainable);
        EXPECT_TRUE(!plan.shard_params || plan.module == model.modules[id]);
        numel += parameter.numel;
      }
      EXPECT_TRUE(plan.shard_params || numel <= zero.reduce_bucket_size ||
                  plan.parameters.size() == 1);
    }
    EXPECT_EQ(seen.size(), 20u);
  }
}

// So their owners need not send them to each other.
TEST(Buckets, HoldMatricesOfMuonThatTwoRanksShareWithoutCuttingOne) {
  constexpr int64_t kModelWidth = 128;
  Model model;
  model.add(256 * kModelWidth, 0);
  for (int layer = 0; layer < 4; ++layer) {
    for (const int64_t columns : {3 * kModelWidth, kModelWidth, 4 * kModelWidth, 4 * kModelWidth}) {
      model.add(kModelWidth * columns, 1 + layer);
      model.specs.back().use_muon = true;
    }
  }
  ZeroConfig zero;
  zero.stage = 2;
  int matrices = 0;
  for (const BucketPlan& plan : model.plan(zero)) {
    if (!plan.use_muon) continue;
    const BucketLayout layout = lay_out(plan.parameters, 2, 1);
    for (const int64_t begin : {int64_t{0}, layout.shard_numel}) {
      matrices += static_cast<int>(layout.intervals(begin, begin + layout.shard_numel).size());
    }
  }
  EXPECT_EQ(matrices, 16);
  zero.reduce_bucket_size = 1000;
  EXPECT_EQ(model.plan(zero).size(), 17u) << "the configured size is a limit in any case";
}

TEST(Buckets, ModelPersistenceThresholdCapsWhatStaysGathered) {
  Model model;
  for (int i = 0; i < 10; ++i) model.add(10, 0);
  int64_t persistent = 0;
  for (const BucketPlan& plan : model.plan({.stage = 3, .model_persistence_threshold = 35})) {
    for (const SizedParameter& parameter : plan.parameters) {
      if (!plan.shard_params) persistent += parameter.numel;
    }
  }
  EXPECT_EQ(persistent, 30);
}

// So a plan for ranks that could never hold their shards ends soon, too.
TEST(Chunks, OfAnyModelAreFew) {
  Config config;
  config.zero.stage = 2;
  config.offload.optimizer.device = OffloadDevice::cpu;
  for (const int64_t numel : {int64_t{1} << 22, int64_t{1} << 40, int64_t{1} << 49}) {
    std::vector<ParameterSpec> specs;
    for (const char* name : {"a", "b", "c"}) specs.push_back({name, {numel / 256, 256}, "m"});
    const ShardedModel model(config, specs, 2, /*computes_on_host=*/true);
    size_t chunks = 0;
    for (const Bucket& bucket : model.buckets) chunks += bucket.chunks.size();
    EXPECT_GE(static_cast<int64_t>(chunks), 3 * std::min<int64_t>(numel / 2 >> 22, 1 << 14));
    EXPECT_LE(chunks, size_t{(1 << 16) + 3 * 2});
  }
}

}  // namespace
}  // namespace zerorun
