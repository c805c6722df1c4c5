// A secondary partition of parameters within a host (hpZ): the bits are plain stage 3's, and the
// ranks of all hosts meet once for each parameter and step.

#include "core/check.h"
#include "tests/common.h"
#include "tests/paths.h"
#include "tests/zero/toy_run.h"
#include "zero/memory_plan.h"

namespace zerorun::hpz {
namespace {

using testing::expect_same;
using testing::HostOf;
using testing::hosts_of;
using testing::run_engines;
using testing::toy_train;
using testing::ToyOutcome;

// Every gather is made anew: nothing stays.
Config config_of(int64_t secondary, DType dtype = DType::bf16) {
  Config config = testing::toy_config(3, dtype);
  config.zero.hpz_partition_size = secondary;
  config.zero.max_reuse_distance = 0;
  return config;
}

TEST(HpzTest, GivesTheBitsOfPlainStage3) {
  for (const auto& [ranks, host] : {std::pair(4, 2), std::pair(8, 4), std::pair(8, 2)}) {
    Config config = config_of(1);
    config.batch.accumulation_steps = 2;
    const ToyOutcome expected = toy_train(config, ranks);
    for (const bool own_thread : {false, true}) {
      if (ranks == 8 && !own_thread) continue;
      config.zero.hpz_partition_size = host;
      config.zero.overlap_comm = own_thread;
      config.zero.max_reuse_distance = own_thread ? 0 : 1'000'000;
      expect_same(toy_train(config, ranks, 4, -1, {}, hosts_of(host)), expected,
                  fmt::format("{} ranks, {} on a host", ranks, host));
    }
  }
}

TEST(HpzTest, SharesAHostAmongSeveralCopiesAndACopyAmongHosts) {
  const ToyOutcome expected = toy_train(config_of(1, DType::fp32), 8);
  for (const int64_t secondary : {2, 4}) {
    const int host = secondary == 2 ? 4 : 2;
    expect_same(toy_train(config_of(secondary, DType::fp32), 8, 4, -1, {}, hosts_of(host)),
                expected, fmt::format("{} ranks of {} on a host", secondary, host));
  }
  Config grouped = config_of(2, DType::fp32);
  grouped.zero.shard_group_size = 4;  // of two hosts each
  expect_same(toy_train(grouped, 8, 4, -1, {}, hosts_of(2)), expected, "within a shard group");
}

TEST(HpzTest, FollowsSkippedStepsAndShardsThatAreStoredElsewhere) {
  Config config = config_of(1, DType::fp16);
  const ToyOutcome skipped = toy_train(config, 4, 4, 1);
  EXPECT_EQ(skipped.skipped, 1);
  config.zero.hpz_partition_size = kRanksOfHost;
  expect_same(toy_train(config, 4, 4, 1, {}, hosts_of(2)), skipped, "fp16");
  config = config_of(1);
  const ToyOutcome plain = toy_train(config, 4);
  config.zero.hpz_partition_size = 2;
  config.offload.optimizer.device = config.offload.param.device = OffloadDevice::nvme;
  config.offload.optimizer.nvme_path = config.offload.param.nvme_path = test_paths::build();
  config.offload.param.max_in_cpu = 0;
  expect_same(toy_train(config, 4, 4, -1, {}, hosts_of(2)), plain, "parameters in files");
}

// Elements of gathers, by the group that they are made in, and the memory of a rank.
struct Traffic {
  std::map<std::string, int64_t> gathered;
  int64_t state_bytes = 0;
};

const std::vector<ParameterSpec>& two_matrices() {
  static const std::vector<ParameterSpec> specs = {{"a", {64, 1024}, "m", 0, true, ""},
                                                   {"b", {32, 1024}, "n", 0, true, ""}};
  return specs;
}
constexpr int64_t kNumel = int64_t{96} * 1024;

// The traffic of rank 0 in a step of two micro-steps, each of which uses every module twice.
Traffic traffic_of(const Config& config, const HostOf& host_of) {
  Traffic traffic;
  run_engines({config, 4, host_of, two_matrices()}, [&](Engine& engine, Communicator& comm) {
    std::mutex mutex;
    std::map<std::string, int64_t> gathered;
    Subscription observed = comm.observe([&](const CollectiveSpan& span) {
      const std::lock_guard lock(mutex);
      const size_t colon = span.label.find(": ");
      const std::string group = colon == std::string::npos ? "" : span.label.substr(0, colon);
      if (span.op == Collective::all_gather) gathered[group] += span.bytes / 2;
    });
    for (int micro = 0; micro < 2; ++micro) {
      for (const char* module : {"m", "n", "n", "m"}) testing::visit(engine, module);
      for (const ParameterId id : {1, 0}) testing::give_gradient(engine, id, 0.5F);
      engine.end_micro_step();
    }
    engine.step();
    observed.reset();
    if (comm.rank() == 0) traffic = {gathered, engine.model_state_bytes()};
  });
  return traffic;
}

TEST(HpzTest, AllRanksMeetOnceForEachParameterAndStep) {
  Config config = config_of(2);
  config.batch.accumulation_steps = 2;
  config.zero.prefetch_bucket_size = 0;
  const Traffic copied = traffic_of(config, hosts_of(2));
  EXPECT_EQ(copied.gathered,
            (std::map<std::string, int64_t>{{"", kNumel}, {"hpZ partition 0", 3 * kNumel}}));
  // On one host there is nothing to save.
  EXPECT_FALSE(traffic_of(config, hosts_of(4)).gathered.contains("hpZ partition 0"));
  const MemoryPlan plan = plan_memory(config, two_matrices(), {4, 2, true});
  EXPECT_EQ(plan.secondary, kNumel);
  EXPECT_EQ(plan.parameters + plan.secondary + plan.gradients + plan.masters + plan.moments,
            copied.state_bytes);
  config.zero.hpz_partition_size = 1;
  EXPECT_EQ(traffic_of(config, hosts_of(2)).state_bytes, copied.state_bytes - plan.secondary);
}

// Weights that only the caller interprets, or of a dtype of their own, beside an adapter.
std::vector<ParameterSpec> adapted_specs() {
  std::vector<ParameterSpec> specs;
  for (const char* module : {"m", "n"}) {
    const std::string name = module;
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

bool is_stored_as_bits(const ParameterSpec& spec) { return spec.dtype.has_value(); }

void write_bytes(Engine& engine) {
  engine.states().visit_states(StateAccess::write, [&](const StateInterval& interval) {
    const ParameterSpec& spec = engine.parameters()[static_cast<size_t>(interval.parameter)];
    if (!is_stored_as_bits(spec)) return;
    const auto element = static_cast<int64_t>(size_of(interval.param.dtype));
    auto* bytes = reinterpret_cast<uint8_t*>(interval.param.data);
    for (int64_t i = 0; i < interval.numel * element; ++i) {
      bytes[i] = byte_of(interval.parameter, interval.begin * element + i);
    }
  });
}

int64_t wrong_bytes(Engine& engine, const std::string& module) {
  int64_t wrong = 0;
  engine.gather(engine.module_id(module));
  for (ParameterId id = 0; id < static_cast<ParameterId>(engine.parameters().size()); ++id) {
    const ParameterSpec& spec = engine.parameters()[static_cast<size_t>(id)];
    if (spec.module != module || !is_stored_as_bits(spec)) continue;
    const TensorView full = engine.parameter(id);
    const auto* bytes = reinterpret_cast<const uint8_t*>(full.data);
    for (int64_t i = 0; i < static_cast<int64_t>(full.nbytes()); ++i) {
      wrong += bytes[i] != byte_of(id, i);
    }
  }
  engine.release(engine.module_id(module));
  return wrong;
}

TEST(HpzTest, FrozenParametersOfAnotherDtypeKeepTheirBits) {
  for (const int64_t secondary : {1, 2}) {
    for (const OffloadDevice home : {OffloadDevice::none, OffloadDevice::cpu}) {
      Config config = config_of(secondary);
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
          for (const ParameterId id : {7, 3}) testing::give_gradient(engine, id, 0.5F);
          engine.end_micro_step();
          EXPECT_TRUE(engine.step().applied);
        }
      });
    }
  }
}

std::string error_of(const Config& config) { return testing::refusal({config, 4, hosts_of(2)}); }

TEST(HpzTest, SizesThatCannotWorkAreErrors) {
  EXPECT_THAT(error_of(config_of(3)),
              AllOf(HasSubstr("zero_hpz_partition_size"), HasSubstr("got 3 where 4 ranks")));
  EXPECT_THAT(error_of(config_of(8)), HasSubstr("got 8 where 4 ranks"));
  Config config = config_of(2);
  config.zero.stage = 2;
  EXPECT_THAT(error_of(config), HasSubstr("needs /zero_optimization/stage 3, got 2"));
}

}  // namespace
}  // namespace zerorun::hpz
