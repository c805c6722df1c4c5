// The traffic of shard groups and of secondary partitions of parameters within a host (hpZ), what
// they refuse, and arrangements of hosts that GroupMixTest, which has their bits, does not draw.

#include "tests/zero/toy_run.h"
#include "zero/memory_plan.h"
#include "zerorun/exact_sum.h"

namespace zerorun::testing::groups {
namespace {

Config grouped(int stage, int64_t group, DType dtype = DType::bf16) {
  Config config = toy_config(stage, dtype);
  config.zero.shard_group_size = group;
  return config;
}

// Every gather is made anew: nothing stays.
Config copied(int64_t secondary, DType dtype = DType::bf16) {
  Config config = toy_config(3, dtype);
  config.zero.hpz_partition_size = secondary;
  config.zero.max_reuse_distance = 0;
  return config;
}

const std::vector<ParameterSpec>& two_matrices() {
  static const std::vector<ParameterSpec> specs = {{"a", {64, 1024}, "m"}, {"b", {32, 1024}, "n"}};
  return specs;
}
constexpr int64_t kNumel = int64_t{96} * 1024;

// Groups of two ranks on hosts of three: the second group has ranks of both hosts.
TEST(ShardGroupTest, GroupsOfSomeHostsAndOfOneTrainTogether) {
  const HostOf mixed = hosts_of("aaabbb");
  for (int stage = 1; stage <= 3; ++stage) {
    Config config = grouped(stage, 2, DType::fp32);
    const ToyOutcome plain = toy_train({config, 6, mixed});
    EXPECT_EQ(plain, toy_train({config, 6, hosts_of(1)})) << "stage " << stage;
    // Groups within a host quantize what the others quantize.
    config.zero.quantized_weights = true;
    const ToyOutcome quantized = toy_train({config, 6, mixed});
    EXPECT_EQ(quantized, toy_train({config, 6, hosts_of(1)})) << "stage " << stage;
    EXPECT_NE(quantized.hash, plain.hash);
  }
}

TEST(ShardGroupTest, AutoTakesTheRanksOfAHost) {
  const Config config = grouped(3, kRanksOfHost);
  run_engines({config, 4, hosts_of(2)}, [&](Engine& engine, Communicator& comm) {
    const Traffic traffic = traffic_of(comm, [&] { toy_step(engine, comm, config, 0); });
    EXPECT_TRUE(traffic.contains(fmt::format("shard group {}", comm.rank() / 2)));
    EXPECT_TRUE(traffic.contains(fmt::format("replicas of shard {}", comm.rank() % 2)));
  });
}

TEST(ShardGroupTest, SizesThatCannotWorkAreErrors) {
  EXPECT_THAT(refusal({grouped(2, 3), 4}),
              HasAll("/zerorun/shard_group_size", "got 3 for 4 ranks"));
  EXPECT_THAT(refusal({grouped(2, 4)}), HasSubstr("got 4 for 2 ranks"));
  EXPECT_THAT(refusal({grouped(0, 2), 4}), HasSubstr("got 0, which shards nothing"));
  EXPECT_THAT(refusal({grouped(1, kRanksOfHost), 3, hosts_of("aab")}),
              HasSubstr("from 1 to 2 ranks"));
}

// Elements of full tensors in a step, in units of the model's, by the group that they are sent in.
TEST(ShardGroupTest, OnlySumsOfShardsLeaveAGroup) {
  constexpr int kGroup = 2;
  for (int stage = 1; stage <= 3; ++stage) {
    Config config = gathering_config(stage);
    config.zero.shard_group_size = kGroup;
    run_engines({config, 4, {}, two_matrices()}, [&](Engine& engine, Communicator& comm) {
      const double state_bytes = stage == 1   ? 4 + 4 + 8.0 / kGroup
                                 : stage == 2 ? 4 + 12.0 / kGroup
                                              : 16.0 / kGroup;
      EXPECT_NEAR(static_cast<double>(engine.model_state_bytes()) / kNumel, state_bytes, 0.1);
      Traffic bytes = traffic_of(comm, [&] {
        for (const char* module : {"m", "n"}) visit(engine, module);
        for (const ParameterId id : {1, 0}) give_gradient(engine, id, 0.5F);
        engine.end_micro_step();
        engine.step();
      });
      const auto part = [&](const std::string& group, Collective op) {
        return static_cast<double>(bytes[group][op]) / (4 * kNumel);
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

TEST(HpzTest, SharesAHostAmongSeveralCopiesAndACopyAmongHosts) {
  const ToyOutcome expected = toy_train({copied(1, DType::fp32), 8});
  EXPECT_EQ(toy_train({copied(2, DType::fp32), 8, hosts_of(4)}), expected);
  EXPECT_EQ(toy_train({copied(4, DType::fp32), 8, hosts_of(2)}), expected);
  Config within = copied(2, DType::fp32);
  within.zero.shard_group_size = 4;  // of two hosts each
  EXPECT_EQ(toy_train({within, 8, hosts_of(2)}), expected) << "within a shard group";
}

// Elements of gathers, by the group that they are made in, and the memory of a rank.
struct Gathers {
  std::map<std::string, int64_t> elements;
  int64_t state_bytes = 0;
};

// Those of rank 0 in a step of two micro-steps, each of which uses every module twice.
Gathers gathers_of(const Config& config, const HostOf& host_of) {
  return result_of({config, 4, host_of, two_matrices()}, [&](Engine& engine, Communicator& comm) {
    const Traffic traffic = traffic_of(comm, [&] {
      for (int micro = 0; micro < 2; ++micro) {
        for (const char* module : {"m", "n", "n", "m"}) visit(engine, module);
        for (const ParameterId id : {1, 0}) give_gradient(engine, id, 0.5F);
        engine.end_micro_step();
      }
      engine.step();
    });
    Gathers gathers{.elements = {}, .state_bytes = engine.model_state_bytes()};
    for (const auto& [group, bytes] : traffic) {
      if (!bytes.contains(Collective::all_gather)) continue;
      gathers.elements[group] = bytes.at(Collective::all_gather) / 2;
    }
    return gathers;
  });
}

TEST(HpzTest, AllRanksMeetOnceForEachParameterAndStep) {
  Config config = copied(2);
  config.batch.accumulation_steps = 2;
  config.zero.prefetch_bucket_size = 0;
  const Gathers found = gathers_of(config, hosts_of(2));
  EXPECT_EQ(found.elements,
            (std::map<std::string, int64_t>{{"", kNumel}, {"hpZ partition 0", 3 * kNumel}}));
  // On one host there is nothing to save.
  EXPECT_FALSE(gathers_of(config, hosts_of(4)).elements.contains("hpZ partition 0"));
  const MemoryPlan plan = plan_memory(config, two_matrices(), {4, 2, true});
  EXPECT_EQ(plan.secondary, kNumel);
  EXPECT_EQ(plan.parameters + plan.secondary + plan.gradients + plan.masters + plan.moments,
            found.state_bytes);
  config.zero.hpz_partition_size = 1;
  EXPECT_EQ(gathers_of(config, hosts_of(2)).state_bytes, found.state_bytes - plan.secondary);
}

// Weights that only the caller interprets, or of a dtype of their own, beside an adapter.
std::vector<ParameterSpec> adapted_specs() {
  std::vector<ParameterSpec> specs;
  for (const std::string name : {"m", "n"}) {
    specs.push_back({name + ".bytes", {48, 512}, name, 0, false, ""});
    specs.back().dtype = DType::uint8;
    specs.push_back({name + ".halves", {24, 512}, name, 0, false, ""});
    specs.back().dtype = DType::fp16;
    specs.push_back({name + ".frozen", {16, 512}, name, 0, false, ""});
    specs.push_back({name + ".adapter", {16, 512}, name, 0, true, ""});
  }
  return specs;
}

// Any byte, which makes some halves NaN.
uint8_t byte_of(ParameterId id, int64_t byte) {
  return static_cast<uint8_t>((byte * 37 + byte / 251 + id * 11) % 256);
}

void write_bytes(Engine& engine) {
  engine.states().visit_states(StateAccess::write, [&](const StateInterval& interval) {
    if (!spec_of(engine, interval.parameter).dtype) return;
    const auto begin = interval.begin * static_cast<int64_t>(size_of(interval.param.dtype));
    for (size_t i = 0; i < interval.param.nbytes(); ++i) {
      interval.param.data[i] =
          std::byte{byte_of(interval.parameter, begin + static_cast<int64_t>(i))};
    }
  });
}

int64_t wrong_bytes(Engine& engine, const std::string& module) {
  int64_t wrong = 0;
  with_module(engine, module, [&] {
    for (const ParameterId id : parameters_of(engine, module)) {
      if (!spec_of(engine, id).dtype) continue;
      const TensorView full = engine.parameter(id);
      for (size_t i = 0; i < full.nbytes(); ++i) {
        wrong += full.data[i] != std::byte{byte_of(id, static_cast<int64_t>(i))};
      }
    }
  });
  return wrong;
}

TEST(HpzTest, FrozenParametersOfAnotherDtypeKeepTheirBits) {
  for (const auto& [secondary, home] :
       each(std::array{1, 2}, std::array{OffloadDevice::none, OffloadDevice::cpu})) {
    Config config = copied(secondary);
    config.zero.quantized_weights = config.zero.quantized_nontrainable_weights = true;
    config.zero.quantized_gradients = true;
    config.offload.param.device = home;
    run_engines({config, 4, hosts_of(2), adapted_specs()}, [&](Engine& engine, Communicator&) {
      write_bytes(engine);
      for (int step = 0; step < 3; ++step) {
        for (const char* module : {"m", "n", "n", "m"}) {
          EXPECT_EQ(wrong_bytes(engine, module), 0)
              << module << " in step " << step << ", hpZ of " << secondary;
        }
        for (const ParameterId id : {7, 3}) give_gradient(engine, id, 0.5F);
        engine.end_micro_step();
        EXPECT_TRUE(engine.step().applied);
      }
    });
  }
}

TEST(HpzTest, SizesThatCannotWorkAreErrors) {
  const auto error_of = [](const Config& config) { return refusal({config, 4, hosts_of(2)}); };
  EXPECT_THAT(error_of(copied(3)), HasAll("zero_hpz_partition_size", "got 3 where 4 ranks"));
  EXPECT_THAT(error_of(copied(8)), HasSubstr("got 8 where 4 ranks"));
  Config config = copied(2);
  config.zero.stage = 2;
  EXPECT_THAT(error_of(config), HasSubstr("needs /zero_optimization/stage 3, got 2"));
}

}  // namespace
}  // namespace zerorun::testing::groups
