#include "zero/partition/muon_rounds.h"

#include "tests/common.h"
#include "zero/memory_plan.h"

namespace zerorun::muon_rounds_of {
namespace {

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

// The least cost of the busiest rank of all ways to give matrices from `first` on to ranks from
// `rank` on, in order.
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
  for (const int ranks : {2, 4, 8}) {
    for (const int stage : {1, 3}) {
      const ShardedModel model(config_of(stage), specs, ranks, true);
      const Outcome outcome = outcome_of(model, ranks);
      EXPECT_LT(outcome.busiest, 1.35 * outcome.all / ranks) << ranks << " ranks, stage " << stage;
      // Both ways, of all ranks; a gather would be `numel` for each rank. Owners keep what they
      // can.
      EXPECT_LT(outcome.moved, (stage == 3 ? 1.8 : 1.2) * static_cast<double>(numel))
          << ranks << " ranks, stage " << stage;
      // About a gathered bucket, or one matrix of each rank; more if a bucket cannot be halved.
      int64_t room = 2 * (kLargest + ranks * kNormBlock);
      for (const Bucket& bucket : model.buckets) {
        room = std::max(room, bucket.layout.padded_numel());
      }
      EXPECT_LE(outcome.numel, room + room / 20);
    }
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
}  // namespace zerorun::muon_rounds_of
