// What the gathers of a step's results cost where they run beside the next forward, in virtual
// time.

#include "tests/zero/virtual_model.h"

namespace zerorun::update_overlap {
namespace {

using testing::virtual_config;
using testing::VirtualModel;

constexpr int kModules = 8;
constexpr double kForward = 1.0;  // of a module
constexpr double kNorm = 0.5;     // more than the words of the gradient's norm take

void forward(const VirtualModel& model) {
  for (int i = 0; i < kModules; ++i) model.forward(i, kForward);
}

// Calls `look` with a model whose gathers of a bucket take `gather` seconds, after a step.
void after_step(const Config& config, double gather,
                const std::function<void(const VirtualModel&, double begin)>& look) {
  const testing::VirtualJob job{
      .config = config, .modules = kModules, .collectives = {.gather = gather}};
  run_virtually(job, [&](const VirtualModel& model) {
    for (int step = 0; step < 2; ++step) {
      forward(model);
      for (int i = kModules; i-- > 0;) model.backward(i, 0.0);
      model.engine.end_micro_step();
      const double begin = model.settle();
      EXPECT_TRUE(model.engine.step().applied);
      if (step == 1) look(model, begin);
    }
  });
}

double step_and_forward(const Config& config, double gather) {
  double seconds = 0;
  after_step(config, gather, [&](const VirtualModel& model, double begin) {
    forward(model);
    seconds = model.clock.caller - begin;
  });
  return seconds;
}

TEST(UpdateOverlap, ForwardWaitsForTheFirstBucketOnlyWhereGathersAreFaster) {
  for (int stage = 1; stage <= 2; ++stage) {
    // `overlap_comm` is the default where the device is not the host.
    const double seconds = step_and_forward(virtual_config(stage), 0.5);
    EXPECT_LE(seconds, 0.5 + kModules * kForward + kNorm) << "stage " << stage;
  }
}

TEST(UpdateOverlap, SlowerGathersHideAllButTheLastModulesForward) {
  for (int stage = 1; stage <= 2; ++stage) {
    const double seconds = step_and_forward(virtual_config(stage), 3.0);
    EXPECT_LE(seconds, kModules * 3.0 + kForward + kNorm) << "stage " << stage;
    EXPECT_GE(seconds, kModules * 3.0 + kForward) << "stage " << stage;
  }
}

TEST(UpdateOverlap, WithoutAStreamOfTheirOwnGathersAndForwardTakeTheirSum) {
  Config config = virtual_config(2);
  config.zero.overlap_comm = false;
  EXPECT_GE(step_and_forward(config, 0.5), kModules * (0.5 + kForward));
}

TEST(UpdateOverlap, ReadersBetweenStepsWaitForWhatTheyRead) {
  const auto reader = [](const std::function<void(Engine&)>& read) {
    double seconds = 0;
    after_step(virtual_config(1), 3.0, [&](const VirtualModel& model, double begin) {
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
