// How long offloaded gradients, updates and parameters are waited for, in virtual time.

#include "tests/zero/virtual_time.h"

namespace zerorun::testing {
namespace {

constexpr int kModules = 32;
constexpr int64_t kNumel = VirtualModel::kNumel;
constexpr double kNorm = 0.15;  // the words of the gradient norm go to the device and back

// How long each bucket takes on its way.
struct Costs {
  double backward = 1.0;
  double to_host = 1.0;
  double step = 1.0;
  double to_device = 1.0;
  VirtualKind kind = VirtualKind::accelerator;
};

struct Exposed {
  double backward = 0.0;  // from its start to the end of the micro-step
  double step = 0.0;
};

Exposed run(const Costs& costs, int stage, double ratio = 1.0) {
  Exposed exposed;
  constexpr double kBytes = 2.0 * kNumel;
  Config config = virtual_config(stage);
  config.zero.overlap_comm = true;
  config.offload.optimizer.device = OffloadDevice::cpu;
  config.offload.optimizer.ratio = ratio;
  const VirtualJob job{.config = config,
                       .modules = kModules,
                       .costs = {.download_per_byte = costs.to_host / kBytes,
                                 .upload_per_byte = costs.to_device / kBytes,
                                 .update_per_element = costs.step / kNumel},
                       .kind = costs.kind};
  run_virtually(job, [&](const VirtualModel& model) {
    const double start = model.settle();
    model.backward(costs.backward);
    model.engine.end_micro_step();
    const double end = model.clock.caller;
    EXPECT_TRUE(model.engine.step().applied);
    model.engine.hooks().finish_updates();
    exposed = {end - start, model.clock.caller - end};
  });
  return exposed;
}

// Chunks in a row on three streams: the longest of the three, and the first and last chunk's way.
double pipelined(double a, double b) { return kModules * std::max(a, b) + std::min(a, b); }

TEST(OffloadOverlap, GradientsGoDownBesideBackward) {
  for (int stage = 1; stage <= 3; ++stage) {
    const Exposed exposed =
        run({.backward = 1.0, .to_host = 1.0, .step = 0.0, .to_device = 0.0}, stage);
    EXPECT_NEAR(exposed.backward, kModules, 1e-3);
    EXPECT_LE(exposed.step, 1.0 + kNorm) << "stage " << stage;  // the last bucket's
  }
}

TEST(OffloadOverlap, TheStepTakesTheLongestOfItsPartsAndNotTheirSum) {
  for (int stage = 1; stage <= 3; ++stage) {
    for (const auto& [step, to_device] : {std::pair(1.0, 1.0), {2.0, 0.5}, {0.5, 2.0}}) {
      const Exposed exposed = run({.to_host = 1.0, .step = step, .to_device = to_device}, stage);
      EXPECT_LE(exposed.step, 1.0 + pipelined(step, to_device) + kNorm)
          << "stage " << stage << " step " << step << " to device " << to_device;
      EXPECT_GE(exposed.step, kModules * std::max(step, to_device) - 1e-3);
    }
  }
}

TEST(OffloadOverlap, SlowCopiesDownAreExposedOnce) {
  const Exposed exposed = run({.backward = 0.1, .to_host = 2.0, .step = 1.0, .to_device = 1.0}, 2);
  EXPECT_LE(exposed.backward + exposed.step, kModules * 2.0 + pipelined(1.0, 1.0) + 2.0);
}

// From where it is reduced to where it is used, everything is in the host's memory.
TEST(OffloadOverlap, CpuRanksCopyNeitherGradientsNorParameters) {
  for (int stage = 2; stage <= 3; ++stage) {
    const Exposed exposed =
        run({.to_host = 9.0, .to_device = 9.0, .kind = VirtualKind::host}, stage);
    EXPECT_NEAR(exposed.backward, kModules, 1e-3);
    EXPECT_LE(exposed.step, kModules + 9 * kNorm) << "stage " << stage;
  }
}

// Seconds of `kModules` gathers of parameters in host memory, with as much work between them.
double gather_seconds(double to_device, int64_t prefetch) {
  double seconds = 0;
  Config config = virtual_config(3);
  config.zero.prefetch_bucket_size = prefetch;
  config.zero.overlap_comm = true;
  config.offload.param.device = OffloadDevice::cpu;
  const VirtualJob job{.config = config,
                       .modules = kModules,
                       .costs = {.upload_per_byte = to_device / (2.0 * kNumel)}};
  run_virtually(job, [&](const VirtualModel& model) {
    for (int pass = 0; pass < 3; ++pass) {  // the order is learned
      const double start = model.clock.caller;
      model.forward(1.0);
      seconds = model.clock.caller - start;
    }
  });
  return seconds;
}

TEST(OffloadOverlap, ParametersComeUpBesideWorkInTheLearnedOrder) {
  EXPECT_NEAR(gather_seconds(1.0, 2 * kNumel), kModules, 1e-3);
  EXPECT_NEAR(gather_seconds(3.0, 2 * kNumel), 3 * kModules, 3.0 + 1e-3);
  EXPECT_NEAR(gather_seconds(1.0, 0), 2 * kModules, 1e-3);
  // Modules that are larger than the limit come early one at a time.
  EXPECT_NEAR(gather_seconds(1.0, kNumel / 8), kModules, 1e-3);
  EXPECT_NEAR(gather_seconds(3.0, kNumel / 8), 3 * kModules, 3.0 + 1e-3);
}

TEST(OffloadOverlap, TheDevicesPartIsSteppedBesideTheHosts) {
  const Exposed all = run({.to_host = 0.1, .step = 1.0, .to_device = 0.1}, 2, 1.0);
  const Exposed half = run({.to_host = 0.1, .step = 1.0, .to_device = 0.1}, 2, 0.5);
  EXPECT_NEAR(half.step / all.step, 0.5, 0.1);
}

}  // namespace
}  // namespace zerorun::testing
