// On a GPU a step is submitted whole before the host knows the gradient's norm: the update reads
// the decision from the GPU's memory. What comes of it is what the CPU's steps do.

#include "tests/zero/cuda/transports.h"

namespace zerorun::testing::decided_step {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kSteps = 7;

struct Step {
  bool applied = false;
  bool had_gradient = false;
  double norm = 0.0;
  double clip = 0.0;
  uint64_t hash = 0;
  int64_t count = 0;
  int64_t skipped = 0;

  bool operator==(const Step&) const = default;
};

Config config_of(int stage, const std::string& optimizer, DType dtype = DType::fp32) {
  Config config = toy_config(stage, dtype);
  config.gradient_clipping = 0.05;
  config.optimizer.type = optimizer;
  config.zero.overlap_comm = true;
  return config;
}

// Offloads part of the states, and the parameters.
void offload(Config& config, double states, OffloadDevice parameters = OffloadDevice::none) {
  if (states > 0) {
    config.offload.optimizer.device = OffloadDevice::cpu;
    config.offload.optimizer.ratio = states;
  }
  config.offload.sub_group_size = 512;
  config.offload.param.device = parameters;
  config.offload.param.nvme_path = test_paths::build();
  config.offload.param.max_in_cpu = 0;
}

// Gives a gradient from the device's memory.
void give(Engine& engine, ParameterId id, std::vector<float> values) {
  Device& device = engine.device();
  const Buffer memory = device.allocate(values.size() * sizeof(float), MemoryCategory::other);
  const TensorView view = view_of(memory, DType::fp32, std::ssize(values));
  device.upload(device.inline_stream(), values.data(), view);
  engine.contribute(id, view);
  device.inline_stream().synchronize();
}

// One with a gradient that is not finite, one without any, and one with a gradient that comes after
// its bucket has gone out.
void micro_step(Engine& engine, int rank, int64_t step) {
  const std::vector<ParameterId> ids = trainable(engine);
  if (step != 3) {
    for (const ParameterId id : ids) {
      std::vector<float> values = gradient_of(engine, id, rank, 0, step);
      if (step == 1 && rank == 1 && id == ids[2]) values[5] = NAN;
      give(engine, id, values);
    }
    if (step == 4 && rank == 0) give(engine, ids[0], gradient_of(engine, ids[0], rank, 1, step));
  }
  EXPECT_TRUE(engine.end_micro_step());
}

std::vector<Step> train(const Config& config, Where where) {
  fake::FakeCuda::instance().set_devices(kRanks);
  std::vector<Step> steps;
  run_engines({.config = config, .connect = on(where)}, [&](Engine& engine, Communicator& comm) {
    for (int64_t step = 0; step < kSteps; ++step) {
      micro_step(engine, comm.rank(), step);
      const StepResult result = engine.step();
      const uint64_t hash = engine.states().parameter_hash();
      const EngineProgress progress = engine.states().progress();
      if (comm.rank() != 0) continue;
      steps.push_back({result.applied, result.had_gradient,
                       std::isnan(result.grad_norm) ? -1.0 : result.grad_norm, result.clip_factor,
                       hash, progress.step_count, progress.skipped_steps});
    }
  });
  return steps;
}

struct Setting {
  int stage = 0;
  std::string optimizer;
  double offloaded = 0.0;  // part of the states
  OffloadDevice parameters = OffloadDevice::none;
  DType dtype = DType::fp32;
};

std::string name_of_setting(const ::testing::TestParamInfo<Setting>& info) {
  const auto& [stage, optimizer, offloaded, parameters, dtype] = info.param;
  constexpr std::array kParameters = {"", "_params", "_nvme"};
  return fmt::format("stage{}_{}{}{}{}{}", stage, optimizer, offloaded > 0 ? "_offloaded" : "",
                     offloaded == 1.0 ? "_whole" : "",
                     kParameters.at(static_cast<size_t>(parameters)),
                     dtype == DType::bf16 ? "_bf16" : "");
}

class DecidedStepTest : public LateCudaTest<200>, public ::testing::WithParamInterface<Setting> {};

TEST_P(DecidedStepTest, IsTheStepOfTheCpu) {
  const bool is_half = GetParam().dtype == DType::bf16;
  Config config = config_of(GetParam().stage, GetParam().optimizer, GetParam().dtype);
  const std::vector<Step> expected = train(config, Where::cpu);
  ASSERT_EQ(expected.size(), static_cast<size_t>(kSteps));
  for (size_t step = 0; step < expected.size(); ++step) {
    EXPECT_EQ(expected[step].applied, step != 1 && step != 3) << step;
    EXPECT_EQ(expected[step].had_gradient, step != 3) << step;
  }
  EXPECT_LT(expected[0].clip, 1.0);
  EXPECT_EQ(expected.back().count, kSteps - 2);
  EXPECT_EQ(expected.back().skipped, 1);
  offload(config, GetParam().offloaded, GetParam().parameters);
  // Those of fp32 on one GPU are HostAheadTest's.
  for (const Where where : {Where::nccl, Where::shared_gpu}) {
    if (where == Where::shared_gpu && !is_half) continue;
    const std::vector<Step> found = train(config, where);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t step = 0; step < expected.size(); ++step) {
      Step same = found[step];
      // Products of fp32 have other bits there; that nothing changes is known all the same.
      if (GetParam().optimizer == "Muon") {
        const bool changed = step == 0 || same.hash != found[step - 1].hash;
        EXPECT_EQ(changed, same.applied) << step;
        same.hash = expected[step].hash;
      }
      EXPECT_TRUE(same == expected[step]) << "step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Stages, DecidedStepTest,
    ::testing::Values(
        Setting{0, "AdamW"}, Setting{1, "AdamW"}, Setting{2, "AdamW8bit"}, Setting{2, "Muon"},
        Setting{2, "Lamb"}, Setting{3, "Lion"}, Setting{1, "AdamW", 1.0}, Setting{2, "AdamW", 0.5},
        Setting{2, "Lamb", 0.5}, Setting{2, "Muon", 0.5}, Setting{3, "AdamW", 0.5},
        Setting{3, "AdamW", 0.0, OffloadDevice::cpu}, Setting{3, "Lamb", 0.5, OffloadDevice::cpu},
        Setting{3, "Muon", 0.5, OffloadDevice::cpu}, Setting{3, "AdamW", 0.5, OffloadDevice::nvme},
        Setting{0, "AdamW", 0.0, OffloadDevice::none, DType::bf16},
        Setting{1, "AdamW", 0.5, OffloadDevice::none, DType::bf16},
        Setting{2, "AdamW", 1.0, OffloadDevice::none, DType::bf16},
        Setting{3, "AdamW", 0.0, OffloadDevice::none, DType::bf16},
        Setting{3, "AdamW", 1.0, OffloadDevice::cpu, DType::bf16},
        Setting{3, "AdamW", 0.5, OffloadDevice::nvme, DType::bf16}),
    name_of_setting);

struct Calls {
  int before_the_wait = 0;  // launches of a step
  int after_it = 0;
  int waits = 0;
};

struct SubmittedStepTest : FakeCudaTest {
  // Of the third step. Waits of the thread that calls `take_step` count.
  Calls step_of_one_rank(
      const Config& config,
      const std::function<bool(Engine&)>& take_step =
          [](Engine& engine) { return engine.step().applied; },
      const std::function<void(Engine&)>& after = [](Engine&) {}) {
    fake_.set_inline_streams(true);
    Calls calls;
    const ToyJob job{.config = config, .ranks = 1, .connect = on(Where::nccl)};
    run_engines(job, [&](Engine& engine, Communicator&) {
      for (int64_t step = 0; step < 3; ++step) {  // the first ones allocate
        for (const ParameterId id : trainable(engine)) {
          give(engine, id, gradient_of(engine, id, 0, 0, step));
        }
        engine.end_micro_step();
        const size_t before = fake_.calls().size();
        EXPECT_TRUE(take_step(engine));
        const std::vector<fake::Call> all = fake_.calls();
        calls = {};
        for (size_t i = before; i < all.size(); ++i) {
          if (all[i].thread != std::this_thread::get_id()) continue;
          if (all[i].name.ends_with("Synchronize")) ++calls.waits;
          if (all[i].name == "cudaLaunchKernel") {
            ++(calls.waits == 0 ? calls.before_the_wait : calls.after_it);
          }
        }
      }
      after(engine);
    });
    return calls;
  }

  int64_t calls_named(std::string_view name) const {
    const std::vector<fake::Call> all = fake_.calls();
    return std::count_if(all.begin(), all.end(),
                         [&](const fake::Call& call) { return call.name.ends_with(name); });
  }
};

TEST_F(SubmittedStepTest, WaitsOnceWhereverStatesAndParametersAre) {
  struct Home {
    OffloadDevice parameters = OffloadDevice::none;
    double states = 0.0;     // part that is on the host
    int least_launches = 0;  // a decision, and the update of each bucket that the device updates
  };
  constexpr std::array<Home, 7> kHomes = {{{OffloadDevice::none, 0.0, 3},
                                           {OffloadDevice::none, 0.5, 1},
                                           {OffloadDevice::none, 1.0, 1},
                                           {OffloadDevice::cpu, 0.0},
                                           {OffloadDevice::cpu, 0.5},
                                           {OffloadDevice::nvme, 0.0},
                                           {OffloadDevice::nvme, 0.5}}};
  for (const char* optimizer : {"AdamW", "SGD", "Lamb", "Muon"}) {
    for (const Home& home : kHomes) {
      Config config = config_of(home.parameters == OffloadDevice::none ? 2 : 3, optimizer);
      offload(config, home.states, home.parameters);
      const Calls calls = step_of_one_rank(config);
      SCOPED_TRACE(fmt::format("{}, parameters at home {}, states offloaded {}", optimizer,
                               static_cast<int>(home.parameters), home.states));
      EXPECT_EQ(calls.waits, 1);
      EXPECT_GE(calls.before_the_wait, home.least_launches);
      EXPECT_EQ(calls.after_it, 0);
    }
  }
}

// For the norm, and for whether the optimizer has failed on any rank.
TEST_F(SubmittedStepTest, OfACallersOptimizerWaitsTwice) {
  const Config config = config_of(2, std::string(kExternalOptimizer));
  const Calls calls = step_of_one_rank(config, [](Engine& engine) {
    const auto shrink = [&](std::span<const StateInterval> parts) {
      for (const StateInterval& part : parts) {
        engine.device().scale(engine.device().inline_stream(), part.master, 0.5F);
      }
    };
    return engine.step(shrink).applied;
  });
  EXPECT_EQ(calls.waits, 2);
}

TEST_F(SubmittedStepTest, LeavesGathersThatTheFirstUseOfTheirBucketWaitsForOnTheGpu) {
  const auto step = [](Engine& engine) { return engine.step().applied; };
  step_of_one_rank(config_of(2, "AdamW"), step, [this](Engine& engine) {
    const int64_t host = calls_named("Synchronize");
    std::set<int> waited;
    for (int pass = 0; pass < 2; ++pass) {
      for (const ParameterId id : trainable(engine)) {
        const bool first = waited.insert(engine.hooks().gradient_bucket(id).index).second;
        const int64_t before = calls_named("cudaStreamWaitEvent");
        engine.parameter(id);
        EXPECT_EQ(calls_named("cudaStreamWaitEvent") - before, first ? 1 : 0) << id;
      }
    }
    EXPECT_GT(waited.size(), 1U);
    EXPECT_EQ(calls_named("Synchronize"), host);
  });
}

// The sum that the decision is made of never comes.
TEST_F(SubmittedStepTest, ChangesNothingWhenAPeerIsMissing) {
  fake_.set_devices(kRanks);
  std::barrier<> both(kRanks);
  const ToyJob job{.config = config_of(1, "AdamW"), .limit = 300ms, .connect = on(Where::nccl)};
  run_engines(job, [&](Engine& engine, Communicator& comm) {
    Device& device = engine.device();
    micro_step(engine, comm.rank(), 0);
    const auto stream = device.make_stream("look");
    const TensorView view = engine.parameter(0);  // later it waits for gathers that never come
    const auto parameter = [&] { return downloaded(device, view, *stream); };
    device.inline_stream().synchronize();
    const std::vector<float> before = parameter();
    both.arrive_and_wait();
    if (comm.rank() == 0) {
      EXPECT_THROW(engine.step(), CommError);
      EXPECT_EQ(parameter(), before);
      EXPECT_EQ(engine.states().progress().step_count, 0);
    }
    both.arrive_and_wait();
    comm.abort("the test is over");
  });
}

}  // namespace
}  // namespace zerorun::testing::decided_step
