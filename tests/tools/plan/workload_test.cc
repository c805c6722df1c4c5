
#include <nlohmann/json.hpp>

#include "tests/common.h"
#include "tests/harness.h"
#include "tests/paths.h"
#include "tests/scratch.h"
#include "tools/plan/plan.h"
#include "zerorun/checkpoint.h"
#include "zerorun/engine.h"

namespace zerorun {
namespace {

// On GPUs in 16 bits; not on CPUs, whose attention takes no memory.
TEST(WorkloadTest, CountsTheMemoryOfAttentionsBackward) {
  PlanOptions options{.model = "gpt2", .micro_batch = 16, .seq_len = 4096};
  const auto activations = [](const PlanOptions& given) {
    const std::string report = plan_report(given);
    const size_t at = report.find("activations");
    return report.substr(at, report.find('\n', at) - at);
  };
  const std::string deterministic = activations(options);
  options.fast_attention = true;
  EXPECT_NE(activations(options), deterministic);
  const testing::Scratch folder;
  options.config = folder.write(
      "fast.json",
      R"({"bf16": {"enabled": true}, "zerorun": {"train": {"fast_attention": true}}})");
  const std::string fast = activations(options);
  options.fast_attention = false;
  EXPECT_EQ(activations(options), fast);
  options.config = folder.write("bf16.json", R"({"bf16": {"enabled": true}})");
  EXPECT_EQ(activations(options), deterministic);
  options.cpu = true;
  const std::string on_cpu = activations(options);
  options.fast_attention = true;
  EXPECT_EQ(activations(options), on_cpu);
}

// 48 MB of masters and states where nothing is left out: offloaded ones are more than what is kept
// for them.
std::vector<ParameterSpec> specs_of_plan() {
  std::vector<ParameterSpec> specs;
  for (int i = 0; i < 6; ++i) {
    specs.push_back({fmt::format("h.{}", i), {1024, 1000}, fmt::format("h.{}", i), 0, true, ""});
  }
  specs.push_back({"frozen", {100'000}, "h.0", 0, false, ""});
  specs.push_back({"tied", {1024, 1000}, "h.1", 0, true, "h.0"});
  return specs;
}

struct Planned {
  int stage = 0;
  DType dtype = DType::bf16;
  OffloadDevice optimizer = OffloadDevice::none;
  OffloadDevice param = OffloadDevice::none;
  int64_t asked = 0;
};

Config config_of(const Planned& planned) {
  Config config;
  config.batch.accumulation_steps = 1;
  config.precision.param_dtype = planned.dtype;
  config.zero.stage = planned.stage;
  config.offload.optimizer.device = planned.optimizer;
  config.offload.optimizer.nvme_path = test_paths::build();
  config.offload.param.device = planned.param;
  config.offload.param.nvme_path = test_paths::build();
  config.checkpoint.async_save = true;
  config.checkpoint.async_buffer_size = planned.asked;
  return config;
}

// What the saver of a real engine would take; the plan leaves the padding of its pieces out.
void expect_planned(const Planned& planned, int world_size) {
  const std::vector<ParameterSpec> specs = specs_of_plan();
  const Config config = config_of(planned);
  const int64_t plan = plan_snapshot(config, specs, {world_size, world_size, true});
  testing::run_ranks(world_size, [&](Communicator& comm) {
    const auto device = make_cpu_device();
    const auto engine = Engine::create(config, *device, comm, specs, {ParameterGroup{}});
    const auto real = static_cast<int64_t>(
        snapshot_nbytes(engine->states(), static_cast<uint64_t>(planned.asked)));
    const std::string what =
        fmt::format("stage {}, {}, {} ranks, offload {} {}, asked {}", planned.stage,
                    name_of(planned.dtype), world_size, static_cast<int>(planned.optimizer),
                    static_cast<int>(planned.param), planned.asked);
    EXPECT_NEAR(static_cast<double>(plan), static_cast<double>(real), 0.01 * real + 20'000) << what;
  });
}

TEST(PlanSnapshot, IsWhatTheSaverOfAnEngineTakes) {
  using enum OffloadDevice;
  for (const int stage : {0, 1, 2, 3}) {
    for (const DType dtype : {DType::bf16, DType::fp32}) {
      for (const int world_size : {1, 2, 3}) {
        if (dtype == DType::fp32 && world_size != 2) continue;
        expect_planned({stage, dtype}, world_size);
        expect_planned({stage, dtype, none, none, 1 << 20}, world_size);
        if (stage == 0) continue;
        expect_planned({stage, dtype, cpu}, world_size);
        expect_planned({stage, dtype, nvme}, world_size);
        if (stage == 3) expect_planned({stage, dtype, cpu, cpu}, world_size);
        if (stage == 3) expect_planned({stage, dtype, none, cpu}, world_size);
      }
    }
  }
}

TEST(PlanSnapshot, IsNothingWithoutAsynchronousSaves) {
  Config config = config_of({2});
  config.checkpoint.async_save = false;
  EXPECT_EQ(plan_snapshot(config, specs_of_plan(), {2, 2, true}), 0);
}

TEST(PlanJson, ItSaysWhatTheTableSays) {
  const PlanOptions options{.model = "7B", .world_size = 8, .device_memory = "40GiB", .json = true};
  const auto settings = nlohmann::json::parse(plan_report(options))["settings"];
  ASSERT_EQ(settings.size(), all_settings().size());
  for (const auto& one : settings) {
    EXPECT_EQ(one["fits"], one["device_bytes"] <= int64_t{40} << 30) << one;
  }
  EXPECT_EQ(settings[0]["setting"], "stage 1");
}

}  // namespace
}  // namespace zerorun
