#include "core/check.h"
#include "tests/zero/toy_run.h"

namespace zerorun::testing::offload {
namespace {

TEST(Offload, ASkippedStepWritesNothing) {
  for (const OffloadDevice home : {OffloadDevice::cpu, OffloadDevice::nvme}) {
    const Config config = offloaded(base_config(2, DType::fp16), 1.0, home);
    run_engines({config, 1}, [&](Engine& engine, Communicator& comm) {
      const auto held = [&] {
        std::vector<float> values;
        const auto add = [&](TensorView view) {
          values.insert(values.end(), view.as<float>(), view.as<float>() + view.numel);
        };
        for (const StateInterval& part : engine.states().state_intervals()) {
          if (part.grad.data == nullptr) continue;
          EXPECT_TRUE(part.on_host);
          add(part.master);
          for (const TensorView& state : part.states) add(state);
        }
        return values;
      };
      EXPECT_TRUE(toy_step(engine, comm, config, 0).applied);
      const std::vector<float> before = held();
      EXPECT_FALSE(toy_step(engine, comm, config, 1, true).applied);
      EXPECT_EQ(held(), before);
      EXPECT_TRUE(toy_step(engine, comm, config, 2).applied);
      EXPECT_NE(held(), before);
    });
  }
}

TEST(Offload, StatesOfOneParameterAreItsPartOfAll) {
  using Part = std::tuple<ParameterId, int64_t, int64_t, const std::byte*, const std::byte*>;
  const auto parts_of = [](const std::vector<StateInterval>& intervals) {
    std::vector<Part> parts;
    for (const StateInterval& one : intervals) {
      parts.emplace_back(one.parameter, one.begin, one.numel, one.param.data, one.master.data);
    }
    return parts;
  };
  const std::vector<Config> configs = {
      base_config(0), offloaded(base_config(1), 0.3),
      param_on_nvme(offloaded(base_config(3), 1.0, OffloadDevice::nvme))};
  for (const Config& config : configs) {
    run_engines({config}, [&](Engine& engine, Communicator&) {
      std::vector<Part> one_by_one;
      for (const ParameterId id : parameters_of(engine)) {
        if (!spec_of(engine, id).alias_of.empty()) continue;
        const std::vector<Part> parts = parts_of(engine.states().state_intervals(id));
        one_by_one.insert(one_by_one.end(), parts.begin(), parts.end());
      }
      EXPECT_EQ(one_by_one, parts_of(engine.states().state_intervals()))
          << "stage " << config.zero.stage;
    });
  }
}

TEST(Offload, ABatchThatGoesOnIsAddedWhereItRests) {
  const auto twice = [](Engine& engine, Communicator&, int64_t step) {
    EXPECT_TRUE(ToyModel::micro_step(engine, 0, 0, step));
    EXPECT_TRUE(ToyModel::micro_step(engine, 0, 1, step));
    return engine.step();
  };
  const Config config = base_config(2);
  EXPECT_EQ(train_by({offloaded(config, 0.5), 1}, 3, twice), train_by({config, 1}, 3, twice));
}

TEST(Offload, AnOptimizerOfTheCallersStepsOnTheHost) {
  const auto descends = [](Engine& engine, Communicator& comm, int64_t step) {
    ToyModel::micro_step(engine, comm.rank(), 0, step);
    return engine.step(descent(0.5F));
  };
  Config config = base_config(3);
  config.optimizer.type = std::string(kExternalOptimizer);
  EXPECT_EQ(train_by({offloaded(config, 0.5)}, 3, descends), train_by({config}, 3, descends));
}

// A rank holds for each trainable element: 16-bit parameters, fp32 master and Adam.
TEST(Offload, TheLedgerShowsWhereStatesRestAndNothingIsAllocatedBySteps) {
  Config config = offloaded(base_config(2));
  config.zero.reduce_bucket_size = 1 << 20;
  run_engines({config}, [&](Engine& engine, Communicator& comm) {
    const auto live = [&](MemoryCategory category) {
      return engine.device().memory_use(category).live_bytes;
    };
    EXPECT_EQ(live(MemoryCategory::optimizer), 0);
    EXPECT_EQ(live(MemoryCategory::gradients), 0);
    int64_t held = 0;
    for (const StateInterval& part : engine.states().state_intervals()) {
      if (part.grad.data != nullptr) held += part.numel;
    }
    const int64_t pinned = live(MemoryCategory::pinned);
    EXPECT_GE(pinned, held * (12 + 2));
    expect_steps_allocate_nothing(engine, comm, config);
    EXPECT_EQ(live(MemoryCategory::pinned), pinned);
  });
}

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
      const MemoryUse held = engine.device().memory_use(MemoryCategory::optimizer);
      EXPECT_NEAR(static_cast<double>(held.live_bytes), static_cast<double>(on_device) * 12,
                  12.0 * 1024);
    });
  }
}

TEST(Offload, ParametersRestOnTheHostOncePerHost) {
  const Config config = base_config(3);
  Config other = offloaded(config);
  other.offload.param.device = OffloadDevice::cpu;
  for (const bool share : {true, false}) {
    other.share_parameters = share;
    const auto inspect = [&](Engine& engine, Communicator&) {
      const Device& device = engine.device();
      int64_t sharded = 0;
      int64_t replicated = 0;
      for (const ParameterId id : parameters_of(engine)) {
        if (!spec_of(engine, id).alias_of.empty()) continue;
        (engine.is_sharded(id) ? sharded : replicated) += engine.numel(id) * 2;
      }
      // Gathered parameters are on the device, padding included; the rest is not.
      const int64_t on_device = device.memory_use(MemoryCategory::parameters).live_bytes;
      EXPECT_GE(on_device, replicated);
      EXPECT_LT(on_device, replicated + sharded / 2);
      EXPECT_GE(device.memory_use(MemoryCategory::pinned).live_bytes, sharded / 2);
    };
    EXPECT_EQ(toy_train(other, 2, 4, -1, inspect), toy_train(config, 2))
        << fmt::format("share {}", share);
  }
}

void expect_config_error(const Config& config, const std::string& part) {
  EXPECT_THAT(refusal({config, 1}), HasSubstr(part));
}

TEST(Offload, WhatCannotBeMeantIsAnErrorBeforeTraining) {
  expect_config_error(offloaded(base_config(0)), "needs /zero_optimization/stage 1, 2 or 3, got 0");
  Config nvme = offloaded(base_config(2), 1.0, OffloadDevice::nvme);
  nvme.offload.optimizer.nvme_path = "/no/such/folder";
  expect_config_error(
      nvme, "/no/such/folder: No such file or directory; expected a folder on a local disk");
  nvme.offload.optimizer.nvme_path = "/dev/shm";
  expect_config_error(nvme, "/dev/shm is a folder in memory (tmpfs)");
  nvme.offload.optimizer.nvme_path = "/proc";
  expect_config_error(nvme, "nvme_path /proc: cannot create a file: ");
  nvme.optimizer.type = std::string(kExternalOptimizer);
  expect_config_error(nvme, "the optimizer is the caller's");
  Config param = base_config(2);
  param.offload.param.device = OffloadDevice::cpu;
  expect_config_error(param, "needs /zero_optimization/stage 3, got 2");
}

}  // namespace
}  // namespace zerorun::testing::offload
