// How long backward of stage 3 takes where gathers, reductions and computation run beside each
// other, in virtual time.

#include "tests/zero/virtual_model.h"

namespace zerorun::lanes {
namespace {

using testing::VirtualModel;

constexpr int kBlocks = 12;

struct Seconds {  // of a block
  double compute = 0;
  double gather = 0;
  double reduce = 0;
};

// Seconds from the begin of backward to the norm of the step that follows.
double backward_seconds(const Seconds& block, bool overlaps = true) {
  double seconds = 0;
  Config config = testing::virtual_config(3);
  config.zero.prefetch_bucket_size = VirtualModel::kNumel;
  config.zero.overlap_comm = overlaps;
  const testing::VirtualJob job{.config = config,
                                .modules = kBlocks,
                                .collectives = {block.gather, block.reduce},
                                .ranks = 2};
  run_virtually(job, [&](const VirtualModel& model) {
    for (int step = 0; step < 3; ++step) {
      for (int i = 0; i < kBlocks; ++i) model.forward(i, 0.0);
      const double begin = model.settle();
      for (int i = kBlocks; i-- > 0;) model.backward(i, block.compute);
      model.engine.end_micro_step();
      EXPECT_TRUE(model.engine.step().applied);
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

}  // namespace
}  // namespace zerorun::lanes
