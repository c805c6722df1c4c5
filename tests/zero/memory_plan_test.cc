#include "zero/memory_plan.h"

#include "tests/zero/toy_run.h"

namespace zerorun::testing::planned {
namespace {

constexpr int64_t kWidth = 96;
constexpr int kSmallLayers = 6;

std::vector<ParameterSpec> small_transformer() {
  std::vector<ParameterSpec> specs = {{"wte", {512, kWidth}, "embed", 0, true, ""}};
  for (int layer = 0; layer < kSmallLayers; ++layer) {
    const std::string module = "h." + std::to_string(layer);
    specs.push_back({module + ".ln", {kWidth}, module, 1, true, ""});
    specs.push_back({module + ".attn", {kWidth, 4 * kWidth}, module, 0, true, ""});
    specs.back().use_muon = true;
    specs.push_back({module + ".frozen", {kWidth, kWidth}, module, 0, layer != 2, ""});
    specs.push_back({module + ".packed", {kWidth, 5 * kWidth}, module, 0, false, ""});
    specs.back().dtype = DType::uint8;
    specs.push_back({module + ".mlp", {kWidth, 8 * kWidth}, module, 0, true, ""});
  }
  return specs;
}

void expect_planned(const Config& config, const HostLayout& layout, const std::string& what) {
  const MemoryPlan plan = plan_memory(config, small_transformer(), layout);
  const ToyJob job{config, layout.world_size, hosts_of(layout.ranks_per_host), small_transformer()};
  run_engines(job, [&](Engine& engine, Communicator&) {
    for (int step = 0; step < 2; ++step) {
      while (!even_micro_step(engine, 0.01F)) {
      }
      engine.step();
    }
    const auto planned = plan.by_category();
    for (const MemoryCategory category :
         {MemoryCategory::parameters, MemoryCategory::gradients, MemoryCategory::optimizer,
          MemoryCategory::buckets, MemoryCategory::pinned, MemoryCategory::nvme}) {
      const bool by_peak = category >= MemoryCategory::buckets;
      const auto actual = static_cast<double>(by_peak ? peak_bytes(engine, category)
                                                      : live_bytes(engine, category));
      EXPECT_NEAR(static_cast<double>(planned[static_cast<size_t>(category)]), actual,
                  0.03 * actual + 64)
          << name_of(category) << ", " << what;
    }
    // Locked memory is missing to others: here 1 % is all that may be more.
    EXPECT_LE(static_cast<double>(peak_bytes(engine, MemoryCategory::pinned)),
              1.01 * static_cast<double>(plan.pinned))
        << what;
  });
}

void expect_planned(const Config& config, int world_size, const std::string& what) {
  expect_planned(config, {world_size, world_size, /*cpu=*/true}, what);
}

constexpr std::array kHomes = {OffloadDevice::none, OffloadDevice::cpu, OffloadDevice::nvme};

Config config_with(int stage, OffloadDevice states, OffloadDevice parameters) {
  Config config;
  config.zero.stage = stage;
  config.zero.reduce_bucket_size = 100'000;
  config.zero.param_persistence_threshold = 1000;
  config.offload.optimizer.device = states;
  config.offload.optimizer.nvme_path = test_paths::build();
  config.offload.param.device = parameters;
  config.offload.param.nvme_path = test_paths::build();
  config.offload.param.max_in_cpu = states == OffloadDevice::none ? 0 : 50'000;
  config.offload.sub_group_size = 30'000;
  return config;
}

TEST(MemoryPlan, IsWhatTheLedgerSaysOverStagesOffloadAndDtypes) {
  for (const auto& [dtype, accumulation, stage, states, parameters] :
       each(kFp32Bf16, std::array{1, 2}, kStages, kHomes, kHomes)) {
    if (stage == 0 && states != OffloadDevice::none) continue;
    if (stage < 3 && parameters != OffloadDevice::none) continue;
    for (const int world_size : {1, 2}) {
      Config config = config_with(stage, states, parameters);
      config.batch.accumulation_steps = accumulation;
      config.precision.param_dtype = dtype;
      config.offload.optimizer.ratio = world_size == 1 ? 1.0 : 0.5;
      config.share_parameters = accumulation == 1;
      expect_planned(config, world_size,
                     fmt::format("{} accumulation {} stage {} states {} parameters {} world {}",
                                 name_of(dtype), accumulation, stage, static_cast<int>(states),
                                 static_cast<int>(parameters), world_size));
    }
  }
}

TEST(MemoryPlan, IsWhatTheLedgerSaysWithOtherOptimizers) {
  for (const auto& [type, home] : each(std::array{"SGD", "AdamW8bit", "Lamb", "Muon"},
                                       std::array{OffloadDevice::none, OffloadDevice::cpu})) {
    Config config = toy_config(2);
    config.optimizer.type = type;
    config.precision.communication_dtype = DType::fp32;
    config.zero.reduce_bucket_size = 100'000;
    config.offload.optimizer.device = home;
    expect_planned(config, 2, type);
  }
}

TEST(MemoryPlan, GathersWithinTheReuseDistance) {
  expect_planned(gathering_config(3, DType::bf16), 2, "no reuse");
}

TEST(MemoryPlan, IsWhatTheLedgerSaysOnSeveralHosts) {
  for (const auto& [stage, group, saves] : each(kStages, std::array{0, 2, 4}, kEither)) {
    if (stage == 0 && group > 0) continue;
    if (saves && (stage == 0 || group > 0)) continue;
    Config config = toy_config(stage);
    config.zero.reduce_bucket_size = Config().zero.reduce_bucket_size;
    config.zero.param_persistence_threshold = 1000;
    config.zero.max_reuse_distance = 0;
    config.zero.shard_group_size = group == 4 ? kRanksOfHost : group;
    config.zero.quantized_gradients = saves;
    config.zero.quantized_weights = saves;
    if (saves && stage == 3) config.zero.hpz_partition_size = 2;
    expect_planned(config, {4, 2, /*cpu=*/true},
                   fmt::format("stage {} groups {} saves {}", stage, group, saves));
  }
}

// Settings that mean another thing on GPUs where they are not given.

// The largest bucket of a model of 1.2e9 parameters.
int64_t largest_bucket(const Config& config, bool computes_on_host) {
  std::vector<ParameterSpec> specs;
  for (int i = 0; i < 120; ++i) {
    specs.push_back({.name = "p" + std::to_string(i), .shape = {10'000'000}});
  }
  const ShardedModel model(config, specs, /*world_size=*/2, computes_on_host);
  int64_t largest = 0;
  for (const Bucket& bucket : model.buckets) {
    int64_t numel = 0;
    for (const Placement& placement : bucket.layout.placements) numel += placement.numel;
    largest = std::max(largest, numel);
  }
  return largest;
}

TEST(GpuDefaults, BucketsHoldUpTo100Megabytes) {
  for (const int stage : {0, 1, 2}) {
    Config config;
    config.zero.stage = stage;
    config.precision.param_dtype = DType::bf16;
    EXPECT_EQ(largest_bucket(config, true), 150'000'000) << "an eighth of the model on CPUs";
    EXPECT_EQ(largest_bucket(config, false), 50'000'000);
    config.precision.param_dtype = DType::fp32;
    EXPECT_EQ(largest_bucket(config, false), 20'000'000);
    config.zero.reduce_bucket_size = 100'000'000;
    EXPECT_EQ(largest_bucket(config, false), 100'000'000) << "what is given counts";
  }
}

}  // namespace
}  // namespace zerorun::testing::planned
