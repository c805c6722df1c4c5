

#include "tests/common.h"
#include "tests/harness.h"
#include "tests/zero/timed_collectives.h"
#include "tests/zero/virtual_clock.h"
#include "tests/zero/wrapped_communicator.h"
#include "zerorun/engine.h"

namespace zerorun::update_overlap {
namespace {

using testing::run_ranks;
using testing::TimedCollectives;
using testing::VirtualClock;
using testing::VirtualCosts;
using testing::VirtualKind;
using testing::VirtualStream;
using testing::VirtualTimeDevice;

constexpr int kModules = 8;
constexpr int64_t kNumel = 4096;
constexpr double kForward = 1.0;  // of a module
constexpr double kNorm = 0.5;     // more than the words of the gradient's norm take

struct Model {
  Engine& engine;
  VirtualClock& clock;
  VirtualTimeDevice& device;

  void forward() const {
    for (int i = 0; i < kModules; ++i) {
      const ModuleId module = engine.module_id("m" + std::to_string(i));
      engine.gather(module);
      engine.parameter(i);
      clock.caller += kForward;
      engine.release(module);
    }
  }
  void backward() const {
    for (int i = kModules; i-- > 0;) {
      device.fill(device.inline_stream(), engine.gradient(i).view, 0.01F);
      engine.grad_ready(i);
    }
    engine.end_micro_step();
  }
};

Config config_of(int stage) {
  Config config;
  config.batch.accumulation_steps = 1;
  config.precision.param_dtype = DType::bf16;
  config.zero.stage = stage;
  config.zero.reduce_bucket_size = kNumel;
  return config;
}

// Calls `look` with a model whose gathers of a bucket take `gather` seconds, after a step.
void after_step(const Config& config, double gather, VirtualKind kind,
                const std::function<void(const Model&, double begin)>& look) {
  run_ranks(1, [&](Communicator& comm) {
    VirtualClock clock;
    VirtualTimeDevice device(clock, {}, kind);
    TimedCollectives slow(comm, {.gather = gather});
    std::vector<ParameterSpec> specs;
    for (int i = 0; i < kModules; ++i) {
      specs.push_back({"w" + std::to_string(i), {kNumel}, "m" + std::to_string(i), 0, true, ""});
    }
    const auto engine = Engine::create(config, device, slow, specs, {ParameterGroup{}});
    engine->initialize_parameters([](ParameterId, int64_t, std::span<float> out) {
      std::fill(out.begin(), out.end(), 0.5F);
    });
    const Model model{*engine, clock, device};
    for (int step = 0; step < 2; ++step) {
      model.forward();
      model.backward();
      clock.caller += 1e6;  // everything before is over
      const double begin = clock.caller;
      EXPECT_TRUE(engine->step().applied);
      if (step == 1) look(model, begin);
    }
  });
}

double step_and_forward(const Config& config, double gather, VirtualKind kind) {
  double seconds = 0;
  after_step(config, gather, kind, [&](const Model& model, double begin) {
    model.forward();
    seconds = model.clock.caller - begin;
  });
  return seconds;
}

TEST(UpdateOverlap, ForwardWaitsForTheFirstBucketOnlyWhereGathersAreFaster) {
  for (int stage = 1; stage <= 2; ++stage) {
    // `overlap_comm` is the default where the device is not the host.
    const double seconds = step_and_forward(config_of(stage), 0.5, VirtualKind::accelerator);
    EXPECT_LE(seconds, 0.5 + kModules * kForward + kNorm) << "stage " << stage;
  }
}

TEST(UpdateOverlap, SlowerGathersHideAllButTheLastModulesForward) {
  for (int stage = 1; stage <= 2; ++stage) {
    const double seconds = step_and_forward(config_of(stage), 3.0, VirtualKind::accelerator);
    EXPECT_LE(seconds, kModules * 3.0 + kForward + kNorm) << "stage " << stage;
    EXPECT_GE(seconds, kModules * 3.0 + kForward) << "stage " << stage;
  }
}

TEST(UpdateOverlap, WithoutAStreamOfTheirOwnGathersAndForwardTakeTheirSum) {
  Config config = config_of(2);
  config.zero.overlap_comm = false;
  EXPECT_GE(step_and_forward(config, 0.5, VirtualKind::accelerator), kModules * (0.5 + kForward));
}

TEST(UpdateOverlap, ReadersBetweenStepsWaitForWhatTheyRead) {
  const auto reader = [](const std::function<void(Engine&)>& read) {
    double seconds = 0;
    after_step(config_of(1), 3.0, VirtualKind::accelerator, [&](const Model& model, double begin) {
      read(model.engine);
      model.device.inline_stream().synchronize();
      seconds = model.clock.caller - begin;
    });
    return seconds;
  };
  EXPECT_LE(reader([](Engine&) {}), kNorm);
  // Buckets are gathered in the order of the next forward.
  EXPECT_NEAR(reader([](Engine& engine) { engine.parameter(0); }), 3.0, kNorm);
  EXPECT_NEAR(reader([](Engine& engine) { engine.parameter(1); }), 6.0, kNorm);
  const double all = kModules * 3.0;
  EXPECT_GE(reader([](Engine& engine) { engine.states().parameter_hash(); }), all);
  EXPECT_GE(reader([](Engine& engine) { engine.states().state_intervals(); }), all);
  EXPECT_GE(reader([](Engine& engine) { engine.states().accept_changes(); }), all);
  EXPECT_GE(reader([](Engine& engine) { engine.states().refresh_from_masters(); }), all);
  EXPECT_GE(reader([](Engine& engine) {
              engine.states().visit_states(StateAccess::write, [](const StateInterval&) {});
            }),
            all);
}

}  // namespace
}  // namespace zerorun::update_overlap
