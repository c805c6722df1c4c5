// How long gathers, reductions, updates and copies are waited for where they run beside
// computation, in virtual time.

#include "tests/zero/virtual_time.h"
#include "zero/gradients/gradient_norm.h"

namespace zerorun::testing::overlap {
namespace {

constexpr int kModules = 8;
constexpr int64_t kNumel = VirtualModel::kNumel;

struct Limits {
  int64_t prefetch = 0;
  int64_t live = int64_t{1} << 30;
  int64_t reuse = 0;
};

// Seconds of a forward and backward of stage 3 whose order is known, if a module's gather takes
// `gather` and its computation a second each time.
double step_seconds(double gather, const Limits& limits) {
  double seconds = 0;
  Config config = virtual_config(3);
  config.zero.prefetch_bucket_size = limits.prefetch;
  config.zero.max_live_parameters = limits.live;
  config.zero.max_reuse_distance = limits.reuse;
  const VirtualJob job{.config = config, .collectives = {.gather = gather}};
  run_virtually(job, [&](const VirtualModel& model) {
    for (int step = 0; step < 3; ++step) {
      const double begin = model.settle();
      model.forward(1.0);
      model.backward(1.0);
      seconds = model.clock.caller - begin;
      model.step();
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

constexpr int kBlocks = 12;

struct Seconds {  // of a block
  double compute = 0;
  double gather = 0;
  double reduce = 0;
};

// Seconds from the begin of backward to the norm of the step that follows.
double backward_seconds(const Seconds& block, bool overlaps = true) {
  double seconds = 0;
  Config config = virtual_config(3);
  config.zero.prefetch_bucket_size = kNumel;
  config.zero.overlap_comm = overlaps;
  const VirtualJob job{.config = config,
                       .modules = kBlocks,
                       .collectives = {block.gather, block.reduce},
                       .ranks = 2};
  run_virtually(job, [&](const VirtualModel& model) {
    for (int step = 0; step < 3; ++step) {
      model.forward(0.0);
      const double begin = model.settle();
      model.backward(block.compute);
      model.step();
      if (model.comm.rank() == 0) seconds = model.clock.caller - begin;
    }
  });
  return seconds;
}

// The first gather was made ahead, nothing hides the last computation and the last reduction.
TEST(Lanes, BackwardTakesTheLongestOfComputationGathersAndReductions) {
  for (const Seconds& block : {Seconds{1, 1, 1}, Seconds{2, 1, 1}, Seconds{1, 2, 1},
                               Seconds{1, 1, 2}, Seconds{1, 0.9, 0.9}, Seconds{0.5, 3, 2}}) {
    const double longest = std::max({block.compute, block.gather, block.reduce});
    const double rest = block.compute + block.gather + block.reduce - longest;
    EXPECT_LE(backward_seconds(block), kBlocks * longest + rest + 1e-6)
        << block.compute << " " << block.gather << " " << block.reduce;
    EXPECT_GE(backward_seconds(block), (kBlocks - 1) * longest);
  }
}

TEST(Lanes, WithoutStreamsOfTheirOwnTheyTakeTheSum) {
  EXPECT_GE(backward_seconds({1, 2, 3}, false), (kBlocks - 1) * 6.0);
}

constexpr double kForward = 1.0;  // of a module
constexpr double kNorm = 0.5;     // more than the words of the gradient's norm take

// Seconds from the second step on, whose gathers of a bucket take `gather` each, to the end of what
// comes after it.
double step_and(const Config& config, double gather,
                const std::function<void(const VirtualModel&)>& after) {
  double seconds = 0;
  const VirtualJob job{.config = config, .collectives = {.gather = gather}};
  run_virtually(job, [&](const VirtualModel& model) {
    for (int step = 0; step < 2; ++step) {
      model.forward(kForward);
      model.backward(0.0);
      model.engine.end_micro_step();
      const double begin = model.settle();
      EXPECT_TRUE(model.engine.step().applied);
      if (step == 0) continue;
      after(model);
      seconds = model.clock.caller - begin;
    }
  });
  return seconds;
}
void forward(const VirtualModel& model) { model.forward(kForward); }

TEST(UpdateOverlap, ForwardWaitsForTheFirstBucketOrHidesAllButTheLastModules) {
  for (int stage = 1; stage <= 2; ++stage) {
    // `overlap_comm` is the default where the device is not the host.
    EXPECT_LE(step_and(virtual_config(stage), 0.5, forward), 0.5 + kModules * kForward + kNorm);
    const double seconds = step_and(virtual_config(stage), 3.0, forward);
    EXPECT_LE(seconds, kModules * 3.0 + kForward + kNorm) << "stage " << stage;
    EXPECT_GE(seconds, kModules * 3.0 + kForward) << "stage " << stage;
  }
}

TEST(UpdateOverlap, WithoutAStreamOfTheirOwnGathersAndForwardTakeTheirSum) {
  Config config = virtual_config(2);
  config.zero.overlap_comm = false;
  EXPECT_GE(step_and(config, 0.5, forward), kModules * (0.5 + kForward));
}

TEST(UpdateOverlap, ReadersBetweenStepsWaitForWhatTheyRead) {
  const auto reader = [](const std::function<void(Engine&)>& read) {
    return step_and(virtual_config(1), 3.0, [&](const VirtualModel& model) {
      read(model.engine);
      model.device.inline_stream().synchronize();
    });
  };
  EXPECT_LE(reader([](Engine&) {}), kNorm);
  // Buckets are gathered in the order of the next forward.
  EXPECT_NEAR(reader([](Engine& engine) { engine.parameter(0); }), 3.0, kNorm);
  EXPECT_NEAR(reader([](Engine& engine) { engine.parameter(1); }), 6.0, kNorm);
  const std::vector<std::function<void(Engine&)>> readers_of_all = {
      [](Engine& engine) { engine.states().parameter_hash(); },
      [](Engine& engine) { engine.states().state_intervals(); },
      [](Engine& engine) { engine.states().accept_changes(); },
      [](Engine& engine) { engine.states().refresh_from_masters(); },
      [](Engine& engine) {
        engine.states().visit_states(StateAccess::write, [](const StateInterval&) {});
      }};
  for (const auto& read : readers_of_all) EXPECT_GE(reader(read), kModules * 3.0);
}

// How often the host sleeps in a step whose norm comes some seconds after the host asks for it.
TEST(NormWait, AStepLooksForItsNorm) {
  const VirtualJob job{
      .config = virtual_config(2), .modules = 1, .costs = {.download_per_byte = 0.01}};
  run_virtually(job, [&](const VirtualModel& model) {
    model.backward(0.0);
    model.engine.end_micro_step();
    model.settle();
    model.clock.look = 1e6;  // one look finds it
    model.clock.slept = 0;
    // On this device's inline stream an update that is ahead of the norm would wait for it, too.
    EXPECT_TRUE(model.engine.step([](std::span<const StateInterval>) {}).applied);
    EXPECT_EQ(model.clock.slept, 0);
  });
}

TEST(NormWait, TheHostLooksForWhatComesSoonAndSleepsForOthers) {
  VirtualClock clock{.look = 0.25};
  const Event event(std::make_shared<VirtualEvent>(clock, 1.0));
  synchronize_soon(event, 0us);  // one look, and it sleeps
  EXPECT_EQ(clock.slept, 1);
  clock.caller = 0.0;
  synchronize_soon(event, 10s);
  EXPECT_EQ(clock.slept, 1);
  EXPECT_EQ(clock.caller, 1.0);
  synchronize_soon(event, 10s);  // has happened: looked at once
  EXPECT_EQ(clock.caller, 1.25);
  synchronize_soon(Event(), 10s);
}

}  // namespace
}  // namespace zerorun::testing::overlap
