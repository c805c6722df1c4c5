// How long forward and backward of stage 3 take where gathers run beside computation, in virtual
// time.

#include "tests/common.h"
#include "tests/harness.h"
#include "tests/zero/timed_collectives.h"
#include "tests/zero/virtual_clock.h"
#include "zerorun/engine.h"

namespace zerorun::gather_overlap {
namespace {

using testing::run_ranks;
using testing::TimedCollectives;
using testing::VirtualClock;
using testing::VirtualKind;
using testing::VirtualTimeDevice;

constexpr int kModules = 8;
constexpr int64_t kNumel = 4096;

struct Limits {
  int64_t prefetch = 0;
  int64_t live = int64_t{1} << 30;
  int64_t reuse = 0;
};

// Seconds of a forward and backward whose order is known, if a module's gather takes `gather` and
// its computation a second each time.
double step_seconds(double gather, const Limits& limits) {
  double seconds = 0;
  run_ranks(1, [&](Communicator& comm) {
    VirtualClock clock;
    VirtualTimeDevice device(clock, {}, VirtualKind::accelerator);
    TimedCollectives timed(comm, {.gather = gather});
    std::vector<ParameterSpec> specs;
    for (int i = 0; i < kModules; ++i) {
      specs.push_back({"w" + std::to_string(i), {kNumel}, "m" + std::to_string(i), 0, true, ""});
    }
    Config config;
    config.batch.accumulation_steps = 1;
    config.precision.param_dtype = DType::bf16;
    config.zero.stage = 3;
    config.zero.param_persistence_threshold = 0;
    config.zero.prefetch_bucket_size = limits.prefetch;
    config.zero.max_live_parameters = limits.live;
    config.zero.max_reuse_distance = limits.reuse;
    config.share_parameters = false;  // gathers move something
    const auto engine = Engine::create(config, device, timed, specs, {ParameterGroup{}});
    engine->initialize_parameters([](ParameterId, int64_t, std::span<float> out) {
      std::fill(out.begin(), out.end(), 0.5F);
    });
    const auto use = [&](int i, bool backward) {
      const ModuleId module = engine->module_id("m" + std::to_string(i));
      engine->gather(module);
      clock.caller += 1.0;
      if (backward) {
        device.fill(device.inline_stream(), engine->gradient(i).view, 0.01F);
        engine->grad_ready(i);
      }
      engine->release(module);
    };
    for (int step = 0; step < 3; ++step) {
      clock.caller += 1e6;  // everything before is over
      const double begin = clock.caller;
      for (int i = 0; i < kModules; ++i) use(i, false);
      for (int i = kModules; i-- > 0;) use(i, true);
      seconds = clock.caller - begin;
      engine->end_micro_step();
      EXPECT_TRUE(engine->step().applied);
    }
  });
  return seconds;
}

constexpr double kUses = 2.0 * kModules;

// As those of large models do with Hugging Face's "auto" limits.
TEST(GatherOverlap, ModulesThatExceedThePrefetchLimitStillTakeTheLongerOfTheTwo) {
  for (const int64_t prefetch : {kNumel / 8, kNumel - 1, kNumel}) {
    // Nothing precedes the first gather; and the last module, with which backward begins, is
    // gathered when forward has released it.
    EXPECT_NEAR(step_seconds(0.5, {prefetch}), kUses + 2 * 0.5, 1e-3) << prefetch;
    EXPECT_NEAR(step_seconds(1.0, {prefetch}), kUses + 2 * 1.0, 1e-3) << prefetch;
    EXPECT_NEAR(step_seconds(2.0, {prefetch}), 2 * kUses + 1.0, 1.0 + 1e-3) << prefetch;
  }
}

// With the default reuse distance, copies that are used again later fill the room.
TEST(GatherOverlap, WhatStaysForLaterLeavesRoomForTheNextModule) {
  for (const int64_t modules : {2, 3, 5}) {
    const Limits limits = {.prefetch = kNumel, .live = modules * kNumel, .reuse = int64_t{1} << 30};
    // The last modules of forward stay for backward, so fewer are gathered.
    EXPECT_LE(step_seconds(1.0, limits), kUses + 1.0 + 1e-3) << modules;
    EXPECT_LE(step_seconds(3.0, limits), 3.0 * (kUses - 1) + 1.0 + 1e-3) << modules;
  }
}

TEST(GatherOverlap, WithoutPrefetchOrRoomForTwoModulesTheyTakeTheSum) {
  EXPECT_NEAR(step_seconds(1.0, {0}), 2 * kUses, 1.0 + 1e-3);
  EXPECT_NEAR(step_seconds(1.0, {.prefetch = kNumel, .live = kNumel}), 2 * kUses, 1.0 + 1e-3);
}

}  // namespace
}  // namespace zerorun::gather_overlap
