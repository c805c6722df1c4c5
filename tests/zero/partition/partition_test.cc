#include "zero/partition/partition.h"

#include "tests/common.h"
#include "zero/memory_plan.h"
#include "zero/partition/muon_rounds.h"

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
  for (const auto& [layer, columns] :
       each(std::views::iota(0, 4),
            std::array{3 * kModelWidth, kModelWidth, 4 * kModelWidth, 4 * kModelWidth})) {
    model.add(kModelWidth * columns, 1 + layer);
    model.specs.back().use_muon = true;
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

using Shape = std::vector<int64_t>;

// A model of matrices of Muon, one module each.
std::vector<ParameterSpec> matrices(const std::vector<Shape>& shapes) {
  std::vector<ParameterSpec> specs;
  for (const Shape& shape : shapes) {
    const std::string name = "m" + std::to_string(specs.size());
    specs.push_back({.name = name, .shape = shape, .module = name, .use_muon = true});
  }
  return specs;
}

Config config_of(int stage) {
  Config config;
  config.batch.accumulation_steps = 1;
  config.optimizer.type = "Muon";
  config.zero.stage = stage;
  config.zero.param_persistence_threshold = 0;
  return config;
}

double cost_of(const Shape& shape) {
  const auto [side, length] = std::minmax(shape[0], shape[1]);
  return static_cast<double>(side) * static_cast<double>(side) *
         static_cast<double>(2 * length + side);
}

// What the ranks do in all rounds.
struct Outcome {
  double busiest = 0;  // the sum over the rounds of the cost of the rank that has the most to do
  double all = 0;      // the cost of all matrices
  int64_t moved = 0;   // elements that leave their rank, to owners and back
  int64_t numel = 0;   // of the directions of a rank
  size_t rounds = 0;
};

// Also checks that each rank's matrices are whole.
Outcome outcome_of(const ShardedModel& model, int ranks) {
  Outcome outcome;
  for (const MuonRound& round : muon_rounds(model.sharding, model.buckets)) {
    std::vector<double> costs(static_cast<size_t>(ranks));
    for (const MuonShare& share : round.shares) {
      const Bucket& bucket = model.buckets[static_cast<size_t>(share.bucket)];
      const std::vector<int64_t>& cuts = share.to_owners->after;
      EXPECT_EQ(cuts, share.to_shards->before);
      for (const Placement& matrix : bucket.layout.placements) {
        const auto owner = static_cast<size_t>(
            std::upper_bound(cuts.begin(), cuts.end(), matrix.offset) - cuts.begin() - 1);
        EXPECT_LE(matrix.offset + matrix.numel, cuts[owner + 1]);
        costs[owner] += cost_of(model.sharding.specs[static_cast<size_t>(matrix.parameter)].shape);
      }
      for (size_t rank = 0; rank + 1 < cuts.size(); ++rank) {
        const int64_t shard = static_cast<int64_t>(rank) * bucket.layout.shard_numel;
        const int64_t stays = std::min(cuts[rank + 1], shard + bucket.layout.shard_numel) -
                              std::max(cuts[rank], shard);
        outcome.moved += 2 * (bucket.layout.shard_numel - std::max<int64_t>(0, stays));
      }
    }
    outcome.busiest += *std::max_element(costs.begin(), costs.end());
    outcome.all += std::accumulate(costs.begin(), costs.end(), 0.0);
    outcome.numel = std::max(outcome.numel, round.numel);
    ++outcome.rounds;
  }
  return outcome;
}

// The busiest rank's least cost of all ways to give matrices from `first` on, in order, to ranks
// from `rank` on.
double least_cost(const std::vector<Shape>& shapes, size_t first, int rank, int ranks) {
  if (first == shapes.size()) return 0;
  if (rank == ranks) return INFINITY;
  double least = INFINITY;
  double own = 0;
  for (size_t end = first; end <= shapes.size(); ++end) {
    least = std::min(least, std::max(own, least_cost(shapes, end, rank + 1, ranks)));
    if (end < shapes.size()) own += cost_of(shapes[end]);
  }
  return least;
}

TEST(MuonRounds, GiveTheBusiestRankTheLeastOfAllWays) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int64_t> side(1, 60);
  for (int draw = 0; draw < 60; ++draw) {
    std::vector<Shape> shapes(1 + random() % 7);
    for (Shape& shape : shapes) shape = {side(random), side(random)};
    for (const int ranks : {2, 3, 5}) {
      std::vector<ParameterSpec> specs = matrices(shapes);
      for (ParameterSpec& spec : specs) spec.module = "all";  // one bucket
      const ShardedModel model(config_of(3), specs, ranks, true);
      ASSERT_EQ(model.buckets.size(), 1U);
      EXPECT_DOUBLE_EQ(outcome_of(model, ranks).busiest, least_cost(shapes, 0, 0, ranks))
          << ranks << " ranks, draw " << draw;
    }
  }
}

// Twelve layers of GPT-2 with hidden size 768.
std::vector<Shape> gpt2() {
  std::vector<Shape> shapes;
  for (int layer = 0; layer < 12; ++layer) {
    for (const int64_t columns : {3 * 768, 768, 4 * 768}) shapes.push_back({768, columns});
    shapes.push_back({4 * 768, 768});
  }
  return shapes;
}

TEST(MuonRounds, KeepAllRanksBusyEvenIfEachBucketHasOneMatrix) {
  const std::vector<ParameterSpec> specs = matrices(gpt2());
  const auto numel =
      std::accumulate(specs.begin(), specs.end(), int64_t{0},
                      [](int64_t sum, const ParameterSpec& spec) { return sum + spec.numel(); });
  constexpr int64_t kLargest = 4 * 768 * 768;
  for (const auto& [ranks, stage] : each(std::array{2, 4, 8}, std::array{1, 3})) {
    const ShardedModel model(config_of(stage), specs, ranks, true);
    const Outcome outcome = outcome_of(model, ranks);
    EXPECT_LT(outcome.busiest, 1.35 * outcome.all / ranks) << ranks << " ranks, stage " << stage;
    // Both ways, of all ranks; a gather would be `numel` for each. Owners keep what they can.
    EXPECT_LT(outcome.moved, (stage == 3 ? 1.8 : 1.2) * static_cast<double>(numel))
        << ranks << " ranks, stage " << stage;
    // About a gathered bucket, or one matrix of each rank; more if a bucket cannot be halved.
    int64_t room = 2 * (kLargest + ranks * kNormBlock);
    for (const Bucket& bucket : model.buckets) room = std::max(room, bucket.layout.padded_numel());
    EXPECT_LE(outcome.numel, room + room / 20);
  }
}

// Four equal matrices on four ranks: each lies where its owner is.
TEST(MuonRounds, LeaveMatricesWhereTheyAre) {
  std::vector<ParameterSpec> specs = matrices({{64, 64}, {64, 64}, {64, 64}, {64, 64}});
  for (ParameterSpec& spec : specs) spec.module = "all";
  EXPECT_EQ(outcome_of(ShardedModel(config_of(3), specs, 4, true), 4).moved, 0);
  const Outcome two = outcome_of(ShardedModel(config_of(3), specs, 2, true), 2);
  EXPECT_EQ(two.moved, 0);
  EXPECT_EQ(two.busiest, two.all / 2);
}

}  // namespace
}  // namespace zerorun
