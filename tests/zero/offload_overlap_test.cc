

#include "tests/common.h"
#include "tests/harness.h"
#include "tests/zero/virtual_clock.h"
#include "zerorun/engine.h"

namespace zerorun {
namespace {

using testing::run_ranks;
using testing::VirtualClock;
using testing::VirtualCosts;
using testing::VirtualKind;
using testing::VirtualTimeDevice;

constexpr int kModules = 32;
constexpr int64_t kNumel = 4096;
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
  run_ranks(1, [&](Communicator& comm) {
    VirtualClock clock;
    constexpr double kBytes = 2.0 * kNumel;
    VirtualTimeDevice device(clock,
                             {.download_per_byte = costs.to_host / kBytes,
                              .upload_per_byte = costs.to_device / kBytes,
                              .update_per_element = costs.step / kNumel},
                             costs.kind);
    std::vector<ParameterSpec> specs;
    for (int i = 0; i < kModules; ++i) {
      specs.push_back({"w" + std::to_string(i), {kNumel}, "m" + std::to_string(i), 0, true, ""});
    }
    Config config;
    config.batch.accumulation_steps = 1;
    config.precision.param_dtype = DType::bf16;
    config.zero.stage = stage;
    config.zero.reduce_bucket_size = kNumel;
    config.zero.param_persistence_threshold = 0;
    config.zero.overlap_comm = true;
    config.offload.optimizer.device = OffloadDevice::cpu;
    config.offload.optimizer.ratio = ratio;
    const auto engine = Engine::create(config, device, comm, specs, {ParameterGroup{}});
    engine->initialize_parameters([](ParameterId, int64_t, std::span<float> out) {
      std::fill(out.begin(), out.end(), 0.5F);
    });
    clock.caller += 1e6;  // whatever setting up took is over
    const double start = clock.caller;
    for (int i = kModules; i-- > 0;) {
      const ModuleId module = engine->module_id("m" + std::to_string(i));
      engine->gather(module);
      device.fill(device.inline_stream(), engine->gradient(i).view, 0.01F);
      clock.caller += costs.backward;
      engine->grad_ready(i);
      engine->release(module);
    }
    engine->end_micro_step();
    const double end = clock.caller;
    EXPECT_TRUE(engine->step().applied);
    engine->hooks().finish_updates();
    exposed = {end - start, clock.caller - end};
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
  run_ranks(1, [&](Communicator& comm) {
    VirtualClock clock;
    VirtualTimeDevice device(clock, {.upload_per_byte = to_device / (2.0 * kNumel)},
                             VirtualKind::accelerator);
    std::vector<ParameterSpec> specs;
    for (int i = 0; i < kModules; ++i) {
      specs.push_back({"w" + std::to_string(i), {kNumel}, "m" + std::to_string(i), 0, true, ""});
    }
    Config config;
    config.precision.param_dtype = DType::bf16;
    config.zero.stage = 3;
    config.zero.param_persistence_threshold = 0;
    config.zero.prefetch_bucket_size = prefetch;
    config.zero.max_reuse_distance = 0;
    config.zero.overlap_comm = true;
    config.offload.param.device = OffloadDevice::cpu;
    const auto engine = Engine::create(config, device, comm, specs, {ParameterGroup{}});
    for (int pass = 0; pass < 3; ++pass) {  // the order is learned
      const double start = clock.caller;
      for (int i = 0; i < kModules; ++i) {
        const ModuleId module = engine->module_id("m" + std::to_string(i));
        engine->gather(module);
        clock.caller += 1.0;
        engine->release(module);
      }
      seconds = clock.caller - start;
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
}  // namespace zerorun
