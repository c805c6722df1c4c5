// How long backward of stage 3 takes where gathers, reductions and computation run beside each
// other, in virtual time.

#include "tests/common.h"
#include "tests/harness.h"
#include "tests/zero/timed_collectives.h"
#include "tests/zero/virtual_clock.h"
#include "zerorun/engine.h"

namespace zerorun::lanes {
namespace {

using testing::run_ranks;
using testing::TimedCollectives;
using testing::VirtualClock;
using testing::VirtualKind;
using testing::VirtualTimeDevice;

constexpr int kRanks = 2;
constexpr int kBlocks = 12;
constexpr int64_t kNumel = 4096;

struct Seconds {  // of a block
  double compute = 0;
  double gather = 0;
  double reduce = 0;
};

// Seconds from the begin of backward to the norm of the step that follows.
double backward_seconds(const Seconds& block, bool overlaps = true) {
  double seconds = 0;
  run_ranks(kRanks, [&](Communicator& comm) {
    VirtualClock clock;
    VirtualTimeDevice device(clock, {}, VirtualKind::accelerator);
    TimedCollectives timed(comm, {block.gather, block.reduce});
    std::vector<ParameterSpec> specs;
    for (int i = 0; i < kBlocks; ++i) {
      specs.push_back({"w" + std::to_string(i), {kNumel}, "m" + std::to_string(i), 0, true, ""});
    }
    Config config;
    config.batch.accumulation_steps = 1;
    config.precision.param_dtype = DType::bf16;
    config.zero.stage = 3;
    config.zero.param_persistence_threshold = 0;
    config.zero.prefetch_bucket_size = kNumel;
    config.zero.max_reuse_distance = 0;
    config.zero.reduce_bucket_size = kNumel;
    config.zero.overlap_comm = overlaps;
    config.share_parameters = false;  // gathers move something
    const auto engine = Engine::create(config, device, timed, specs, {ParameterGroup{}});
    engine->initialize_parameters([](ParameterId, int64_t, std::span<float> out) {
      std::fill(out.begin(), out.end(), 0.5F);
    });
    const auto use = [&](int i, bool backward) {
      const ModuleId module = engine->module_id("m" + std::to_string(i));
      engine->gather(module);
      if (backward) {
        clock.caller += block.compute;
        device.fill(device.inline_stream(), engine->gradient(i).view, 0.01F);
        engine->grad_ready(i);
      }
      engine->release(module);
    };
    for (int step = 0; step < 3; ++step) {
      for (int i = 0; i < kBlocks; ++i) use(i, false);
      clock.caller += 1e6;  // everything before is over
      const double begin = clock.caller;
      for (int i = kBlocks; i-- > 0;) use(i, true);
      engine->end_micro_step();
      EXPECT_TRUE(engine->step().applied);
      if (comm.rank() == 0) seconds = clock.caller - begin;
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

}  // namespace
}  // namespace zerorun::lanes
