#include "core/check.h"
#include "tests/zero/toy_run.h"

namespace zerorun::testing::offload {
namespace {

TEST(Offload, RatioIsThePartOfTheElements) {
  for (const double ratio : {0.0, 0.25, 0.5, 1.0}) {
    const ToyJob job{offloaded(base_config(1), ratio), 1, {}, {{"w", {1000, 1000}, "w"}}};
    run_engines(job, [&](Engine& engine, Communicator&) {
      int64_t on_host = 0;
      for (const StateInterval& part : engine.states().state_intervals()) {
        if (part.on_host) on_host += part.numel;
      }
      EXPECT_NEAR(static_cast<double>(on_host) / 1e6, ratio, 0.001);
      const int64_t on_device = 1'000'000 - on_host;
      EXPECT_NEAR(live_bytes(engine, MemoryCategory::optimizer), on_device * 12, 12 * 1024);
    });
  }
}

// Copies may still run when an engine ends in the middle of a batch, or with an error.
TEST(Offload, AnEngineMayEndBetweenBackwardAndStep) {
  constexpr int64_t kNumel = int64_t{1} << 22;
  for (int stage = 1; stage <= 3; ++stage) {
    Config config = offloaded(base_config(stage));
    config.offload.sub_group_size = kNumel;
    config.zero.reduce_bucket_size = kNumel;
    std::vector<ParameterSpec> specs;
    for (const char* name : {"a", "b", "c", "d"}) specs.push_back({name, {kNumel}, name});
    run_devices({config, 1}, [&](Device& device, Communicator& comm) {
      const auto engine = Engine::create(config, device, comm, specs, ToyModel::groups());
      for (ParameterId id = 0; id < 4; ++id) give_gradient(*engine, id, 1.0F);
      engine->end_micro_step();
    });
  }
}

TEST(Offload, WhatCannotBeMeantIsAnErrorBeforeTraining) {
  const auto expect_error = [](const Config& config, const std::string& part) {
    EXPECT_THAT(refusal({config, 1}), HasSubstr(part));
  };
  expect_error(offloaded(base_config(0)), "needs /zero_optimization/stage 1, 2 or 3, got 0");
  Config nvme = offloaded(base_config(2), 1.0, OffloadDevice::nvme);
  for (const auto& [folder, part] :
       {std::pair("/no/such", "/no/such: No such file or directory; expected a folder on a local"),
        {"/dev/shm", "/dev/shm is a folder in memory (tmpfs)"},
        {"/proc", "nvme_path /proc: cannot create a file: "}}) {
    nvme.offload.optimizer.nvme_path = folder;
    expect_error(nvme, part);
  }
  nvme.optimizer.type = std::string(kExternalOptimizer);
  expect_error(nvme, "the optimizer is the caller's");
  Config param = param_on_nvme(base_config(3));
  param.offload.param.nvme_path = "/dev/shm";
  expect_error(param, "/zero_optimization/offload_param/nvme_path /dev/shm is a folder in memory");
  param.zero.stage = 2;
  expect_error(param, "needs /zero_optimization/stage 3, got 2");
}

TEST(Offload, ParametersForWhichTheDiskHasNoRoomAreAnErrorBeforeTraining) {
  ToyJob job{param_on_nvme(base_config(3)), 1};
  job.config.offload.sub_group_size = 1 << 30;
  const auto free = static_cast<int64_t>(std::filesystem::space(test_paths::build()).available);
  job.specs.push_back({"huge", {free / 2048 + (1 << 20), 1024}, "x", 0, false, ""});
  EXPECT_THAT(refusal(job), AllOf(HasSubstr("/zero_optimization/offload_param/nvme_path"),
                                  HasSubstr("cannot reserve")));
}

}  // namespace
}  // namespace zerorun::testing::offload
