#include "zero/partition/partition.h"

#include "tests/common.h"
#include "zero/memory_plan.h"

namespace zerorun {
namespace {

std::vector<SizedParameter> sized(const std::vector<int64_t>& numels) {
  std::vector<SizedParameter> parameters;
  for (int64_t numel : numels) {
    parameters.push_back({static_cast<ParameterId>(parameters.size()), numel});
  }
  return parameters;
}

// Zero, one, primes, chunk multiples, and what lies around them.
std::vector<int64_t> random_numels(std::mt19937& random) {
  static constexpr int64_t kSizes[] = {0,   1,   2,   7,   31,   32,   33,
                                       255, 256, 257, 509, 1024, 4099, 9973};
  std::vector<int64_t> numels(1 + random() % 12);
  for (int64_t& numel : numels) numel = kSizes[random() % std::size(kSizes)];
  return numels;
}

TEST(Layout, ShardsCoverEveryElementOnceAndCutOnTheChunkGrid) {
  std::mt19937 random(11);
  for (int round = 0; round < 2000; ++round) {
    const std::vector<int64_t> numels = random_numels(random);
    const int world_size = 1 + static_cast<int>(random() % 9);
    const BucketLayout layout = lay_out(sized(numels), world_size);
    ASSERT_EQ(layout.shard_numel % kNormBlock, 0);
    std::vector<std::vector<bool>> seen;
    for (int64_t numel : numels) seen.emplace_back(numel, false);
    for (int rank = 0; rank < world_size; ++rank) {
      for (const Interval& part : layout.shard_intervals(rank)) {
        ASSERT_EQ(part.begin % kNormBlock, 0);
        ASSERT_GE(part.offset, rank * layout.shard_numel);
        ASSERT_LE(part.offset + part.numel, (rank + 1) * layout.shard_numel);
        ASSERT_GT(part.numel, 0);
        for (int64_t i = 0; i < part.numel; ++i) {
          auto element = seen[static_cast<size_t>(part.parameter)].begin() + part.begin + i;
          ASSERT_FALSE(*element);
          *element = true;
        }
      }
    }
    for (const std::vector<bool>& parameter : seen) {
      ASSERT_THAT(parameter, ::testing::Each(true));
    }
  }
}

TEST(Layout, ParametersDoNotOverlap) {
  std::mt19937 random(12);
  for (int round = 0; round < 500; ++round) {
    const BucketLayout layout = lay_out(sized(random_numels(random)), 1 + round % 5);
    int64_t end = 0;
    for (const Placement& placement : layout.placements) {
      ASSERT_GE(placement.offset, end);
      end = placement.offset + placement.numel;
    }
    ASSERT_LE(end, layout.padded_numel());
  }
}

TEST(Layout, PaddingIsSmallForLargeParameters) {
  const BucketLayout layout = lay_out(sized({768 * 2304, 2304, 768 * 768, 768, 3072 * 768}), 8);
  EXPECT_LT(static_cast<double>(layout.padded_numel()) / static_cast<double>(layout.numel()),
            1.002);
}

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

TEST(Buckets, FillFromTheLastParameterUpToTheSize) {
  Model model;
  for (int i = 0; i < 10; ++i) model.add(100, i);
  const std::vector<BucketPlan> single = model.plan({.stage = 2, .reduce_bucket_size = 100});
  ASSERT_EQ(single.size(), 10u);
  EXPECT_EQ(single.front().parameters.front().parameter, 9);
  EXPECT_EQ(single.back().parameters.front().parameter, 0);
}

TEST(Buckets, AParameterLargerThanTheSizeGoesAlone) {
  Model model;
  for (const int64_t numel : {10, 5000, 10}) model.add(numel, 0);
  const std::vector<BucketPlan> plans = model.plan({.stage = 1, .reduce_bucket_size = 100});
  ASSERT_EQ(plans.size(), 3u);
  EXPECT_EQ(plans[1].parameters.size(), 1u);
  EXPECT_EQ(plans[1].parameters[0].parameter, 1);
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

TEST(Buckets, StageThreeKeepsSmallParametersGatheredAndGroupsTheRestByModule) {
  Model model;
  for (int module = 0; module < 3; ++module) {
    model.add(1000, module);
    model.add(2000, module);
    model.add(10, module);
    model.add(500, module, /*trainable=*/false);
  }
  int sharded = 0;
  int persistent = 0;
  for (const BucketPlan& plan : model.plan({.stage = 3, .param_persistence_threshold = 100})) {
    if (plan.shard_params) {
      ++sharded;
      for (const SizedParameter& parameter : plan.parameters) {
        EXPECT_EQ(model.modules[static_cast<size_t>(parameter.parameter)], plan.module);
        EXPECT_EQ(model.specs[static_cast<size_t>(parameter.parameter)].trainable, plan.trainable);
      }
    } else {
      persistent += static_cast<int>(plan.parameters.size());
    }
  }
  EXPECT_EQ(sharded, 6);  // per module: trainable and frozen
  EXPECT_EQ(persistent, 3);
}

TEST(Buckets, QuantizedTrafficIsOfMatricesOnly) {
  Model model;
  for (int module = 0; module < 2; ++module) {
    model.add(1024, module);  // a vector
    model.add(1024, module);
    model.specs.back().shape = {32, 32};
  }
  for (const int stage : {2, 3}) {
    const ZeroConfig zero{
        .stage = stage, .param_persistence_threshold = 0, .quantized_gradients = true};
    for (const BucketPlan& plan : model.plan(zero)) {
      for (const SizedParameter& parameter : plan.parameters) {
        EXPECT_EQ(plan.quantized, parameter.parameter % 2 == 1) << parameter.parameter;
      }
    }
  }
}

// As in DeepSpeed, a parameter of exactly the threshold stays gathered.
TEST(Buckets, ParametersUpToTheThresholdStayGathered) {
  Model model;
  for (const int64_t numel : {9, 10, 11}) model.add(numel, 0);
  for (const BucketPlan& plan : model.plan({.stage = 3, .param_persistence_threshold = 10})) {
    for (const SizedParameter& parameter : plan.parameters) {
      EXPECT_EQ(plan.shard_params, parameter.numel > 10) << parameter.numel;
    }
  }
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

TEST(Buckets, ComeInTheOrderInWhichBackwardCompletesThem) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    Model model;
    for (int i = 0; i < 20; ++i) {
      model.add(1 + static_cast<int64_t>(random() % 300), i / 4, random() % 4 != 0);
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
      for (const SizedParameter& parameter : plan.parameters) {
        EXPECT_TRUE(seen.insert(parameter.parameter).second);
      }
    }
    EXPECT_EQ(seen.size(), 20u);
  }
}

// True if states may be cut at element `at` of the bucket.
bool may_cut(const BucketLayout& layout, int64_t at) {
  for (const Placement& placement : layout.placements) {
    const int64_t inside = at - placement.offset;
    if (inside > 0 && inside < placement.numel) return inside % kNormBlock == 0;
  }
  return true;
}

TEST(Chunks, CoverTheStoredRangeAndAreCutOnTheGridOfEveryParameter) {
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    std::vector<SizedParameter> parameters;
    const int count = 1 + static_cast<int>(random() % 6);
    for (int i = 0; i < count; ++i) {
      const int64_t sizes[] = {0, 1, 97, 256, 1000, 5003};
      parameters.push_back({i, sizes[random() % 6]});
    }
    const int world_size = 1 + static_cast<int>(random() % 4);
    const BucketLayout layout = lay_out(parameters, world_size, random() % 2 == 0 ? 1 : 256);
    for (int rank = 0; rank < world_size; ++rank) {
      const int64_t from = rank * layout.shard_numel;
      const int64_t numel = layout.shard_numel;
      int64_t host_from = std::min(
          numel,
          cut_near(layout, from + static_cast<int64_t>(random() % (numel + 1)), from) - from);
      if (random() % 4 == 0) host_from = 0;
      const int64_t size = 256 + static_cast<int64_t>(random() % 1000);
      const bool whole = random() % 2 == 0;  // what stays on the device is one chunk
      const auto chunks = cut_chunks(layout, from, numel, host_from,
                                     {.device = whole ? numel : size, .host = size});
      int64_t at = 0;
      if (whole && host_from > 0) {
        EXPECT_EQ(chunks.front().end, host_from);
      }
      for (const Chunk& chunk : chunks) {
        EXPECT_EQ(&chunk, &chunks[static_cast<size_t>(chunk.index)]);
        EXPECT_EQ(chunk.begin, at);
        EXPECT_LT(chunk.begin, chunk.end);
        EXPECT_EQ(chunk.on_host, chunk.begin >= host_from);
        EXPECT_TRUE(chunk.begin == 0 || may_cut(layout, from + chunk.begin));
        int64_t numel_of_parameters = 0;
        for (const Interval& part : layout.intervals(from + chunk.begin, from + chunk.end)) {
          numel_of_parameters += part.numel;
        }
        EXPECT_TRUE((whole && !chunk.on_host) || numel_of_parameters <= size + kNormBlock);
        at = chunk.end;
      }
      EXPECT_EQ(at, numel);
    }
  }
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
