#include "tests/zero/toy_run.h"
#include "zerorun/exact_sum.h"

namespace zerorun::testing {
namespace {

constexpr int64_t kHidden = 128;
constexpr int kLayers = 12;

// The parameters of a small transformer, module by module.
std::vector<ParameterSpec> transformer() {
  std::vector<ParameterSpec> specs = {{"wte", {256, kHidden}, "embed", 0, true, ""}};
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string module = "h." + std::to_string(layer);
    specs.push_back({module + ".ln", {kHidden}, module, 0, true, ""});
    specs.push_back({module + ".attn", {kHidden, 4 * kHidden}, module, 0, true, ""});
    specs.push_back({module + ".mlp", {kHidden, 8 * kHidden}, module, 0, true, ""});
  }
  return specs;
}

double model_numel() {
  double total = 0;
  for (const ParameterSpec& spec : transformer()) total += static_cast<double>(spec.numel());
  return total;
}

Config config_of(int stage) {
  Config config = gathering_config(stage, DType::bf16);
  config.zero.reduce_bucket_size = 200'000;
  config.share_parameters = true;
  return config;
}

void run_step(Engine& engine) {
  even_micro_step(engine, 0.5F);
  engine.step();
}

// Bytes per parameter of the ZeRO paper: 16-bit parameters and gradients, 12 of optimizer state.
double bytes_per_parameter(int stage, double ranks) {
  switch (stage) {
    case 0:
      return 2 + 2 + 12;
    case 1:
      return 2 + 2 + 12 / ranks;
    case 2:
      return 2 + 2 / ranks + 12 / ranks;
    default:
      return (2 + 2 + 12) / ranks;
  }
}

TEST(Cost, ModelStatesPerRankMatchTheFormula) {
  for (const auto& [world_size, stage, share] : each(std::array{1, 2, 4}, kStages, kEither)) {
    Config config = config_of(stage);
    config.share_parameters = share;
    run_engines({config, world_size, {}, transformer()}, [&](Engine& engine, Communicator&) {
      run_step(engine);
      const double expected = bytes_per_parameter(stage, world_size) * model_numel();
      EXPECT_NEAR(static_cast<double>(engine.model_state_bytes()) / expected, 1.0, 0.03)
          << "stage " << stage << " world " << world_size;
    });
  }
}

TEST(Cost, FrozenParametersHoldNoGradientAndNoOptimizerBytes) {
  std::vector<ParameterSpec> specs = transformer();
  for (ParameterSpec& spec : specs) spec.trainable = spec.name == "wte";
  run_engines({.config = config_of(3), .specs = specs}, [](Engine& engine, Communicator&) {
    const double trainable = 256.0 * kHidden;
    const double frozen = model_numel() - trainable;
    const double expected = (trainable * 16 + frozen * 2) / 2;
    EXPECT_NEAR(static_cast<double>(engine.model_state_bytes()) / expected, 1.0, 0.03);
  });
  // Nor any of the sum of a batch's first round, which the second one keeps.
  run_engines({.config = config_of(0), .specs = specs}, [](Engine& engine, Communicator&) {
    for (int round = 0; round < 2; ++round) {
      write_gradients(engine, [](ParameterId, int64_t) { return 1.0F; });
      engine.reduce_gradients();
    }
    EXPECT_EQ(live_bytes(engine, MemoryCategory::buckets), 2 * 256 * kHidden);
  });
}

TEST(Cost, BucketsInFlightAreBounded) {
  run_engines({.config = config_of(2), .specs = transformer()}, [](Engine& engine, Communicator&) {
    run_step(engine);
    // Three slots of the largest bucket, in bf16.
    EXPECT_LE(peak_bytes(engine, MemoryCategory::buckets), 3 * 2 * 210'000);
  });
}

TEST(Cost, EverythingIsReturned) {
  run_ranks(2, [](Communicator& comm) {
    const auto device = make_cpu_device();
    for (int stage = 0; stage <= 3; ++stage) {
      const auto engine =
          Engine::create(config_of(stage), *device, comm, transformer(), {ParameterGroup{}});
      toy_initialize(*engine);
      run_step(*engine);
    }
    for (int category = 0; category < kMemoryCategories; ++category) {
      EXPECT_EQ(device->memory_use(static_cast<MemoryCategory>(category)).live_bytes, 0);
    }
  });
}

// Elements of full tensors, in units of the model's size.
TEST(Cost, CollectivesPerStepMatchTheTable) {
  for (const auto& [stage, share] : each(kStages, kEither)) {
    Config config = config_of(stage);
    config.share_parameters = share;
    run_engines({config, 2, {}, transformer()}, [&](Engine& engine, Communicator& comm) {
      run_step(engine);
      const CommStats before = comm.stats();
      run_step(engine);
      const CommStats step = since(before, comm);
      const auto elements = [&](Collective op) { return static_cast<double>(step[op].elements); };
      // The norm's words are the only other all_reduce.
      EXPECT_NEAR((elements(Collective::all_reduce) - ExactSum::kWords) / model_numel(),
                  stage == 0 ? 1 : 0, 0.03);
      EXPECT_NEAR(elements(Collective::reduce_scatter) / model_numel(), stage == 0 ? 0 : 1, 0.03);
      EXPECT_NEAR(elements(Collective::all_gather) / model_numel(),
                  stage == 0   ? 0
                  : stage == 3 ? 2
                               : 1,
                  0.06);
      EXPECT_EQ(elements(Collective::broadcast), 0);
      // At stage 3 a barrier follows the writing of the shards.
      EXPECT_EQ(step[Collective::barrier].calls, stage == 3 ? 1 : 0);
      EXPECT_EQ(step[Collective::reduce_scatter].bytes,
                2 * step[Collective::reduce_scatter].elements);
    });
  }
}

// What a step costs all ranks together.
struct StepCost {
  int64_t orthogonalized = 0;  // bytes of matrices
  CommStats comm;              // of one rank
};

StepCost cost_of_step(const std::string& optimizer, int stage, int ranks) {
  Config config = config_of(stage);
  config.optimizer.type = optimizer;
  std::vector<ParameterSpec> specs = transformer();
  for (ParameterSpec& spec : specs) spec.use_muon = spec.shape.size() == 2 && spec.name != "wte";
  std::atomic<int64_t> orthogonalized = 0;
  const ToyJob job{config, ranks, {}, specs};
  const CommStats stats = result_of(job, [&](Engine& engine, Communicator& comm) {
    run_step(engine);  // learns the order of gathers
    const Subscription watched = engine.device().observe([&](const WorkSpan& span) {
      if (span.name == "orthogonalize") orthogonalized += span.bytes;
    });
    const CommStats before = comm.stats();
    run_step(engine);
    engine.hooks().finish_updates();
    return since(before, comm);
  });
  return {orthogonalized, stats};
}

// Two ways of a rank's part of the directions, instead of a gather of all.
TEST(CostOfMuon, IsOneOrthogonalizationPerMatrixAndTwoWaysOfARanksPart) {
  constexpr int64_t kMatrices = kLayers * 12 * kHidden * kHidden;
  constexpr auto kBytes = static_cast<double>(kMatrices * sizeof(float));
  for (const auto& [ranks, stage] : each(std::array{2, 4}, kStages)) {
    SCOPED_TRACE(fmt::format("{} ranks, stage {}", ranks, stage));
    const StepCost muon = cost_of_step("Muon", stage, ranks);
    const int64_t times = stage == 0 ? ranks : 1;
    EXPECT_EQ(muon.orthogonalized, times * kMatrices * static_cast<int64_t>(sizeof(float)));
    const CollectiveCount& exchanged = muon.comm[Collective::all_to_all];
    if (stage == 0) {
      EXPECT_EQ(exchanged.calls, 0);
      continue;
    }
    EXPECT_EQ(exchanged.calls % 2, 0);
    EXPECT_GE(static_cast<double>(exchanged.bytes), 2 * kBytes / ranks);
    EXPECT_LE(static_cast<double>(exchanged.bytes), 2 * kBytes / ranks * 1.02);  // padding
    const StepCost adam = cost_of_step("AdamW", stage, ranks);
    const auto gathered = [](const StepCost& cost) {
      return static_cast<double>(cost.comm[Collective::all_gather].bytes);
    };
    EXPECT_LE(gathered(muon), gathered(adam) * 1.02);
  }
}

}  // namespace
}  // namespace zerorun::testing
