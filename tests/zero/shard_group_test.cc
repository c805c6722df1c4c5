// Shard groups: the bits are those of one group of all ranks, the traffic is less.

#include "tests/common.h"
#include "tests/zero/toy_run.h"
#include "zerorun/exact_sum.h"

namespace zerorun::shard_group {
namespace {

using testing::expect_same;
using testing::refusal;
using testing::run_engines;
using testing::toy_train;
using testing::ToyOutcome;

Config config_of(int stage, int64_t group, DType dtype = DType::bf16) {
  Config config = testing::toy_config(stage, dtype);
  config.zero.shard_group_size = group;
  return config;
}

// Ranks and ranks of a group: 2 x 2, 2 x 4 and 4 x 2.
constexpr std::array<std::pair<int, int>, 3> kGroups = {{{4, 2}, {8, 4}, {8, 2}}};

TEST(ShardGroupTest, EveryStageGivesTheBitsOfOneGroup) {
  for (const auto& [dtype, accumulation] : {std::pair(DType::fp32, 1), std::pair(DType::bf16, 2)}) {
    std::map<int, ToyOutcome> expected;  // by world size
    for (const auto& [ranks, group] : kGroups) {
      Config config = config_of(2, 0, dtype);
      config.batch.accumulation_steps = accumulation;
      if (!expected.contains(ranks)) expected[ranks] = toy_train(config, ranks);
      for (int stage = 1; stage <= 3; ++stage) {
        for (const bool own_thread : {false, true}) {
          config.zero = config_of(stage, group).zero;
          config.zero.overlap_comm = own_thread;
          config.share_parameters = !own_thread;
          expect_same(toy_train(config, ranks), expected[ranks],
                      fmt::format("stage {} of {} in groups of {}, {}, {} micro-steps", stage,
                                  ranks, group, name_of(dtype), accumulation));
        }
      }
    }
  }
}

// Groups of two ranks on hosts of three: the second group has ranks of both hosts.
TEST(ShardGroupTest, GroupsOfSomeHostsAndOfOneTrainTogether) {
  const auto train = [](const Config& config, const std::string& hosts) {
    const auto host_of = [&](int rank) { return hosts.substr(static_cast<size_t>(rank), 1); };
    return toy_train(config, 6, 4, -1, {}, host_of);
  };
  for (int stage = 1; stage <= 3; ++stage) {
    Config config = config_of(stage, 2, DType::fp32);
    expect_same(train(config, "aaabbb"), train(config, "abcdef"), fmt::format("stage {}", stage));
    // Groups within a host quantize what the others quantize.
    const uint64_t plain = train(config, "aaabbb").hash;
    config.zero.quantized_weights = true;
    const ToyOutcome quantized = train(config, "aaabbb");
    expect_same(quantized, train(config, "abcdef"), "qwZ");
    EXPECT_NE(quantized.hash, plain);
  }
}

TEST(ShardGroupTest, AGroupOfOneRankHoldsAll) {
  const ToyOutcome expected = toy_train(config_of(1, 0), 2);
  for (int stage = 1; stage <= 3; ++stage) {
    expect_same(toy_train(config_of(stage, 1), 2), expected, fmt::format("stage {}", stage));
  }
}

TEST(ShardGroupTest, OptimizersThatLookAtWholeParametersGiveTheSameBits) {
  for (const char* type : {"Lamb", "Muon", "Lion"}) {
    for (int stage = 1; stage <= 3; ++stage) {
      Config config = config_of(stage, 0);
      config.optimizer.type = type;
      const ToyOutcome expected = toy_train(config, 4);
      config.zero.shard_group_size = 2;
      expect_same(toy_train(config, 4), expected, fmt::format("{} at stage {}", type, stage));
    }
  }
}

TEST(ShardGroupTest, GradientsThatAreNotFiniteSkipTheStepEverywhere) {
  Config config = config_of(2, 0, DType::fp16);
  const ToyOutcome expected = toy_train(config, 4, 4, 1);
  EXPECT_EQ(expected.skipped, 1);
  config.zero.shard_group_size = 2;
  expect_same(toy_train(config, 4, 4, 1), expected, "fp16");
}

TEST(ShardGroupTest, OffloadedStatesGiveTheSameBits) {
  for (const DType accumulated : {DType::bf16, DType::fp32}) {
    Config config = config_of(3, 0);
    config.precision.grad_accum_dtype = accumulated;
    config.batch.accumulation_steps = 2;
    const ToyOutcome expected = toy_train(config, 4);
    config.zero.shard_group_size = 2;
    config.offload.optimizer.device = OffloadDevice::cpu;
    config.offload.optimizer.ratio = 0.5;
    expect_same(toy_train(config, 4), expected, std::string(name_of(accumulated)));
  }
}

TEST(ShardGroupTest, AutoTakesTheRanksOfAHost) {
  const Config config = config_of(3, kRanksOfHost);
  run_engines({config, 4, testing::hosts_of(2)}, [&](Engine& engine, Communicator& comm) {
    std::mutex mutex;
    std::map<std::string, int64_t> labels;
    Subscription observed = comm.observe([&](const CollectiveSpan& span) {
      const std::lock_guard lock(mutex);
      ++labels[span.label.substr(0, span.label.find(':'))];
    });
    testing::toy_step(engine, comm, config, 0);
    observed.reset();
    EXPECT_GT(labels[fmt::format("shard group {}", comm.rank() / 2)], 0);
    EXPECT_GT(labels[fmt::format("replicas of shard {}", comm.rank() % 2)], 0);
  });
}

TEST(ShardGroupTest, SizesThatCannotWorkAreErrors) {
  EXPECT_THAT(refusal({config_of(2, 3), 4}),
              AllOf(HasSubstr("/zerorun/shard_group_size"), HasSubstr("got 3 for 4 ranks")));
  EXPECT_THAT(refusal({config_of(2, 4)}), HasSubstr("got 4 for 2 ranks"));
  EXPECT_THAT(refusal({config_of(0, 2), 4}), HasSubstr("got 0, which shards nothing"));
  EXPECT_THAT(
      refusal({config_of(1, kRanksOfHost), 3, [](int rank) { return rank < 2 ? "a" : "b"; }}),
      HasSubstr("from 1 to 2 ranks"));
}

// Elements of full tensors in a step, in units of the model's, by the group that they are sent in.
TEST(ShardGroupTest, OnlySumsOfShardsLeaveAGroup) {
  constexpr int kGroup = 2;
  for (int stage = 1; stage <= 3; ++stage) {
    Config config = config_of(stage, kGroup, DType::fp32);
    config.zero.param_persistence_threshold = 0;
    config.zero.max_reuse_distance = 0;
    config.share_parameters = false;
    const std::vector<ParameterSpec> specs = {{"a", {64, 1024}, "m", 0, true, ""},
                                              {"b", {32, 1024}, "n", 0, true, ""}};
    run_engines({config, 4, {}, specs}, [&](Engine& engine, Communicator& comm) {
      const double numel = 96 * 1024;
      const double state_bytes = stage == 1   ? 4 + 4 + 8.0 / kGroup
                                 : stage == 2 ? 4 + 12.0 / kGroup
                                              : 16.0 / kGroup;
      EXPECT_NEAR(static_cast<double>(engine.model_state_bytes()) / numel, state_bytes, 0.1);
      std::mutex mutex;
      std::map<std::string, std::map<Collective, int64_t>> bytes;  // by group
      Subscription observed = comm.observe([&](const CollectiveSpan& span) {
        const std::lock_guard lock(mutex);
        const size_t colon = span.label.find(": ");
        bytes[colon == std::string::npos ? "" : span.label.substr(0, colon)][span.op] += span.bytes;
      });
      for (const char* module : {"m", "n"}) testing::visit(engine, module);
      for (const ParameterId id : {1, 0}) testing::give_gradient(engine, id, 0.5F);
      engine.end_micro_step();
      engine.step();
      observed.reset();
      const auto part = [&](const std::string& group, Collective op) {
        return static_cast<double>(bytes[group][op]) / (4 * numel);
      };
      const std::string shards = fmt::format("shard group {}", comm.rank() / kGroup);
      const std::string replicas = fmt::format("replicas of shard {}", comm.rank() % kGroup);
      EXPECT_NEAR(part(shards, Collective::reduce_scatter), 1, 0.02);
      EXPECT_NEAR(part(shards, Collective::all_gather), 1, 0.02);
      EXPECT_NEAR(part(replicas, Collective::all_reduce), 1.0 / kGroup, 0.02);
      EXPECT_EQ(bytes[replicas].size(), 1U);
      // The norm is of all ranks.
      EXPECT_EQ(bytes[""].size(), 1U);
      EXPECT_LT(bytes[""][Collective::all_reduce], 8 * 2 * ExactSum::kWords);
      EXPECT_EQ(bytes.size(), 3U);
    });
  }
}

}  // namespace
}  // namespace zerorun::shard_group
