// How long forward and backward of stage 3 take where gathers run beside computation, in virtual
// time.

#include "tests/zero/virtual_model.h"

namespace zerorun::gather_overlap {
namespace {

using testing::VirtualModel;

constexpr int kModules = 8;
constexpr int64_t kNumel = VirtualModel::kNumel;

struct Limits {
  int64_t prefetch = 0;
  int64_t live = int64_t{1} << 30;
  int64_t reuse = 0;
};

// Seconds of a forward and backward whose order is known, if a module's gather takes `gather` and
// its computation a second each time.
double step_seconds(double gather, const Limits& limits) {
  double seconds = 0;
  Config config = testing::virtual_config(3);
  config.zero.prefetch_bucket_size = limits.prefetch;
  config.zero.max_live_parameters = limits.live;
  config.zero.max_reuse_distance = limits.reuse;
  const testing::VirtualJob job{
      .config = config, .modules = kModules, .collectives = {.gather = gather}};
  run_virtually(job, [&](const VirtualModel& model) {
    for (int step = 0; step < 3; ++step) {
      const double begin = model.settle();
      for (int i = 0; i < kModules; ++i) model.forward(i, 1.0);
      for (int i = kModules; i-- > 0;) model.backward(i, 1.0);
      seconds = model.clock.caller - begin;
      model.engine.end_micro_step();
      EXPECT_TRUE(model.engine.step().applied);
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
