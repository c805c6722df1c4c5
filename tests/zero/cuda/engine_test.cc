// The engine on the CUDA device, through both of its transports, on fake CUDA libraries with
// delays: a missing wait between streams, or host code that reads device memory too early, changes
// the parameters. The fake NCCL adds in the same tree, so the CPU's bits are expected.

#include "tests/zero/cuda/transports.h"
#include "tests/zero/stream_program.h"
#include "zero/memory_plan.h"

namespace zerorun::testing {
namespace {

using fake::FakeCuda;

struct Setting {
  StreamSetting engine{};
  DType dtype = DType::fp32;
  // On two hosts.
  int ranks_of_host = 0;  // 0: all ranks are on one
  bool hpz = false;
  bool quantized = false;
};

Config config_of(const Setting& setting) {
  Config config = stream_config(setting.engine);
  config.zero.max_reuse_distance = setting.ranks_of_host > 0 ? 0 : Config().zero.max_reuse_distance;
  config.precision.param_dtype = setting.dtype;
  config.gradient_clipping = 0.5;
  config.offload.param.nvme_path = test_paths::build();
  config.offload.param.max_in_cpu = 500;
  config.offload.aio.block_size = 4096;
  if (setting.hpz) config.zero.hpz_partition_size = setting.ranks_of_host;
  if (setting.quantized) {
    config.zero.quantized_weights = setting.engine.stage == 3;
    config.zero.quantized_gradients = true;
    config.zero.quantized_gradient_bits = setting.engine.stage == 1 ? 4 : 8;
    config.zero.loco.emplace();
  }
  return config;
}

// On the device there is no more of the sharded parameters than is gathered; the rest is where the
// plan, which is rank 0's, says. (Collectives through the host pin memory of their own.)
void expect_parameters_elsewhere(Engine& engine, const MemoryPlan& plan) {
  int64_t sharded = 0;
  engine.states().visit_states(StateAccess::shape, [&](const StateInterval& part) {
    if (engine.is_sharded(part.parameter)) sharded += static_cast<int64_t>(part.param.nbytes());
  });
  EXPECT_GT(sharded, 0);
  EXPECT_LT(peak_bytes(engine, MemoryCategory::parameters), sharded / 2);
  const auto expect_planned = [&](MemoryCategory category, int64_t planned) {
    const auto live = static_cast<double>(live_bytes(engine, category));
    EXPECT_NEAR(static_cast<double>(planned), live, 0.03 * live + 64) << name_of(category);
    return static_cast<int64_t>(live);
  };
  expect_planned(MemoryCategory::parameters, plan.parameters);
  EXPECT_GE(expect_planned(MemoryCategory::pinned, plan.pinned) +
                expect_planned(MemoryCategory::nvme, plan.nvme),
            sharded);
}

// Compares what is held between steps, and what is beside it at most, with the plan.
void expect_planned_groups(const Setting& setting, Engine& engine, int ranks) {
  const MemoryPlan plan =
      plan_memory(config_of(setting), toy_specs(), {ranks, setting.ranks_of_host});
  EXPECT_EQ(plan.secondary > 0, setting.hpz);
  const int64_t states =
      plan.parameters + plan.secondary + plan.gradients + plan.masters + plan.moments;
  EXPECT_NEAR(static_cast<double>(states), static_cast<double>(engine.model_state_bytes()),
              0.03 * static_cast<double>(states) + 64);
  EXPECT_LE(peak_bytes(engine, MemoryCategory::buckets), plan.buckets + plan.gathered);
}

uint64_t train(const Setting& setting, Where where) {
  const int ranks = setting.ranks_of_host > 0 ? 2 * setting.ranks_of_host : 2;
  FakeCuda::instance().set_devices(ranks);
  ToyJob job{.config = config_of(setting), .ranks = ranks, .connect = on(where)};
  if (setting.ranks_of_host > 0) job.host_of = hosts_of(setting.ranks_of_host);
  return hash_after(job, [&](Engine& engine, Communicator& comm) {
    StreamProgram program(engine, comm.rank());
    for (int step = 0; step < 3; ++step) program.step();
    if (where != Where::nccl || comm.rank() != 0) return;
    if (setting.engine.param != OffloadDevice::none) {
      expect_parameters_elsewhere(engine, plan_memory(job.config, job.specs, {ranks, ranks}));
    }
    if (setting.ranks_of_host > 0) expect_planned_groups(setting, engine, ranks);
  });
}

using CudaEngineTest = LateCudaTest<300>;

// Shards come up for each gather, and go down after each step.
TEST_F(CudaEngineTest, OffloadedParametersChangeNoBitAndRestWhereThePlanSays) {
  const uint64_t expected = train({{3}, DType::bf16}, Where::nccl);
  for (const auto& [offloaded, param] :
       each(std::array{0.0, 0.5, 1.0}, std::array{OffloadDevice::cpu, OffloadDevice::nvme})) {
    EXPECT_EQ(train({{3, offloaded, param}, DType::bf16}, Where::nccl), expected)
        << "states on the host " << offloaded << " nvme " << (param == OffloadDevice::nvme);
  }
}

TEST_F(CudaEngineTest, HpzChangesNoBit) {
  const Setting plain{.engine = {3}, .ranks_of_host = 2};
  Setting copied = plain;
  copied.hpz = true;
  const uint64_t expected = train(plain, Where::cpu);
  for (const Where where : {Where::nccl, Where::shared_gpu}) {
    EXPECT_EQ(train(copied, where), expected);
  }
  // Kernels of several communicators one after the other, in the order of their launches.
  fake_.set_driver(12020);
  EXPECT_EQ(train(copied, Where::nccl), expected);
  fake_.set_nccl_version(22105);
  EXPECT_EQ(train(copied, Where::nccl), expected);
}

// Hosts of one rank: there the CPU's ranks round what GPUs' do.
TEST_F(CudaEngineTest, FewerBitsAreThoseOfTheCpu) {
  for (const int stage : {1, 3}) {
    const Setting alone{.engine = {stage}, .ranks_of_host = 1, .quantized = true};
    EXPECT_EQ(train(alone, Where::nccl), train(alone, Where::cpu)) << stage;
    Setting together = alone;
    together.ranks_of_host = 2;
    together.hpz = stage == 3;
    const uint64_t hash = train(together, Where::nccl);
    EXPECT_EQ(train(together, Where::nccl), hash) << stage;
    EXPECT_NE(hash, train(together, Where::cpu)) << stage;  // 8 bits within a host
  }
}

// Calls of steps to CUDA after the first ones. Streams are inline: counts do not depend on timing.
struct CudaSteadyStateTest : FakeCudaTest, ::testing::WithParamInterface<int> {
  static constexpr int kRanks = 2;
  static constexpr int kFirst = 3;
  static constexpr int kSteps = 10;

  void SetUp() override {
    FakeCudaTest::SetUp();
    fake_.set_inline_streams(true);
    fake_.set_devices(kRanks);
  }

  // Calls of all ranks during the last `kSteps` of training.
  static std::map<std::string, int> calls_of_steps(const Setting& setting) {
    std::vector<std::map<std::string, int>> counts;
    std::barrier all(kRanks,
                     [&counts]() noexcept { counts.push_back(FakeCuda::instance().counts()); });
    const ToyJob job{.config = config_of(setting), .connect = on(Where::nccl)};
    run_engines(job, [&](Engine& engine, Communicator& comm) {
      StreamProgram program(engine, comm.rank());
      for (int step = 0; step < kFirst + kSteps; ++step) {
        if (step == kFirst) all.arrive_and_wait();
        program.step();
      }
      all.arrive_and_wait();
    });
    std::map<std::string, int> calls = counts.at(1);
    for (const auto& [name, before] : counts.at(0)) calls[name] -= before;
    return calls;
  }
};

TEST_P(CudaSteadyStateTest, AllocatesNothing) {
  for (const double offloaded : {0.0, 0.5, 1.0}) {
    const std::map<std::string, int> calls = calls_of_steps({{GetParam(), offloaded}, DType::bf16});
    for (const auto& [name, count] : calls) {
      const bool allocates = std::ranges::any_of(
          std::array{"Malloc", "Alloc", "Create", "Register", "Free"},
          [&](const char* what) { return name.find(what) != std::string::npos; });
      // The host's cores hold events of copies down until they get there: how many there are at
      // once depends on them, but no more than one step records.
      const int most = name.starts_with("cudaEventCreate") && offloaded > 0
                           ? calls.at("cudaEventRecord") / 10
                           : 0;
      if (allocates) {
        EXPECT_LE(count, most) << name << ", offloaded " << offloaded;
      }
    }
    EXPECT_GT(calls.at("cudaLaunchKernel"), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, CudaSteadyStateTest, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace zerorun::testing
