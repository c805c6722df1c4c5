// Within a micro-step the host does not wait for a GPU: it submits, and streams wait for each
// other. A step waits once, for the gradients' norm.

#include "tests/zero/cuda/transports.h"
#include "tests/zero/stream_program.h"

namespace zerorun::testing::host_ahead {
namespace {

struct Outcome {
  uint64_t hash = 0;
  // Waits of the ranks' own threads for a GPU, in the last steps: within micro-steps, and within
  // step().
  int64_t waits = 0;
  int64_t step_waits = 0;
};

constexpr int kRanks = 2;
constexpr int kSteps = 5;

// The first steps allocate.
Outcome train(const StreamSetting& setting, Where where) {
  constexpr int kFirst = 2;
  fake::FakeCuda::instance().set_devices(kRanks);
  std::mutex mutex;
  Outcome outcome;
  const ToyJob job{.config = stream_config(setting), .connect = on(where)};
  run_engines(job, [&](Engine& engine, Communicator& comm) {
    StreamProgram program(engine, comm.rank());
    int64_t waits = 0;
    int64_t step_waits = 0;
    for (int step = 0; step < kFirst + kSteps; ++step) {
      const int64_t begin = waits_so_far();
      program.batch();
      const int64_t middle = waits_so_far();
      EXPECT_TRUE(engine.step().applied);
      if (step < kFirst) continue;
      waits += middle - begin;
      step_waits += waits_so_far() - middle;
    }
    const uint64_t hash = engine.states().parameter_hash();
    const std::lock_guard lock(mutex);
    outcome.hash = hash;
    outcome.waits += waits;
    outcome.step_waits += step_waits;
  });
  return outcome;
}

class HostAheadTest : public LateCudaTest<300>,
                      public ::testing::WithParamInterface<StreamSetting> {};

TEST_P(HostAheadTest, WaitsForTheNormAloneAndTrainsToTheBitsOfTheCpu) {
  const uint64_t expected = train({GetParam().stage}, Where::cpu).hash;
  const Outcome nccl = train(GetParam(), Where::nccl);
  EXPECT_EQ(nccl.hash, expected);
  EXPECT_EQ(nccl.waits, 0);
  EXPECT_EQ(nccl.step_waits, kRanks * kSteps);
  EXPECT_EQ(train(GetParam(), Where::shared_gpu).hash, expected);
}

using Setting = StreamSetting;
INSTANTIATE_TEST_SUITE_P(Stages, HostAheadTest,
                         ::testing::Values(Setting{0}, Setting{1}, Setting{2}, Setting{3},
                                           Setting{3, 0.0, OffloadDevice::cpu},
                                           Setting{3, 0.5, OffloadDevice::cpu}, Setting{1, 0.5},
                                           Setting{2, 1.0}, Setting{3, 0.5}));

class FailedGatherTest : public FakeCudaTest, public ::testing::WithParamInterface<Where> {};

// A gather's error comes to whoever waits for what was computed with it, and to the next gather.
TEST_P(FailedGatherTest, IsTheErrorOfTheInlineStreamAndOfTheNextGather) {
  fake_.set_devices(kRanks);
  std::barrier both(kRanks);
  ToyJob job{.config = stream_config({3}), .limit = 300ms, .connect = on(GetParam())};
  job.config.zero.prefetch_bucket_size = 0;
  run_engines(job, [&](Engine& engine, Communicator& comm) {
    visit(engine, "h.0");
    both.arrive_and_wait();
    if (comm.rank() == 0) {  // the other one never comes
      EXPECT_NO_THROW(engine.gather(engine.module_id("h.0")));
      EXPECT_ERROR_OF(CommError, engine.device().inline_stream().synchronize(), "h.0.weight");
      EXPECT_THROW(engine.gather(engine.module_id("h.1")), CommError);
    }
    both.arrive_and_wait();
    comm.abort("the test is over");
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, FailedGatherTest,
                         ::testing::Values(Where::nccl, Where::shared_gpu));

}  // namespace
}  // namespace zerorun::testing::host_ahead
