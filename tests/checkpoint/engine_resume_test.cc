#include "tests/checkpoint/toy_job.h"

namespace zerorun {
namespace {

using testing::make_engine;
using testing::TemporaryDirectory;
using testing::train;
using testing::with_engine;

constexpr int kStepsBefore = 3;
constexpr int kStepsAfter = 2;

struct Job {
  int world_size = 1;
  int stage = 0;
  DType dtype = DType::bf16;
  int64_t shard_group = 0;

  Config config() const {
    Config config = testing::job_config(stage, dtype);
    config.zero.shard_group_size = shard_group;
    return config;
  }
};

// Trains, saves to the directory, and trains on. The hashes of the parameters at both points.
std::pair<uint64_t, uint64_t> train_and_save(const Job& job, const std::string& directory) {
  std::pair<uint64_t, uint64_t> hashes;
  with_engine(job.world_size, job.config(), [&](Engine& engine, Communicator& comm) {
    train(engine, comm, kStepsBefore);
    save_checkpoint(engine.states(), comm, {.directory = directory});
    const uint64_t saved = engine.states().parameter_hash();
    train(engine, comm, kStepsAfter);
    const uint64_t later = engine.states().parameter_hash();
    if (comm.rank() == 0) hashes = {saved, later};
  });
  return hashes;
}

class EngineResume : public ::testing::TestWithParam<std::tuple<int, int, DType>> {};

TEST_P(EngineResume, AnyStageContinuesWithTheSameBits) {
  const auto [saving_stage, loading_stage, dtype] = GetParam();
  const TemporaryDirectory directory;
  const auto expected = train_and_save({2, saving_stage, dtype}, directory.string());
  const Job loading = {2, loading_stage, dtype};
  with_engine(2, loading.config(), [&](Engine& engine, Communicator& comm) {
    EXPECT_NE(engine.states().parameter_hash(), expected.first);
    EXPECT_EQ(load_checkpoint(engine.states(), comm, directory.string()).step, kStepsBefore);
    EXPECT_EQ(engine.states().parameter_hash(), expected.first);
    train(engine, comm, kStepsAfter);
    EXPECT_EQ(engine.states().parameter_hash(), expected.second);
  });
}

INSTANTIATE_TEST_SUITE_P(Stages, EngineResume,
                         ::testing::Combine(::testing::Range(0, 4), ::testing::Range(0, 4),
                                            ::testing::Values(DType::bf16, DType::fp32)));

TEST(EngineReshard, AnyWorldSizeLoadsWhatAnyOtherSaved) {
  for (int saving = 1; saving <= 4; ++saving) {
    const TemporaryDirectory directory;
    const uint64_t saved = train_and_save({saving, saving % 4}, directory.string()).first;
    for (int loading = 1; loading <= 4; ++loading) {
      const TemporaryDirectory again;
      const Config config = Job{.stage = (loading + 1) % 4}.config();
      with_engine(loading, config, [&](Engine& engine, Communicator& comm) {
        load_checkpoint(engine.states(), comm, directory.string());
        EXPECT_EQ(engine.states().parameter_hash(), saved) << saving << " to " << loading;
        save_checkpoint(engine.states(), comm, {.directory = again.string()});
      });
      // Back at the first world size, the run continues as if it had never been away.
      testing::run_ranks(saving, [&](Communicator& comm) {
        const auto device = make_cpu_device();
        const auto moved = make_engine(Job{.stage = 2}.config(), *device, comm);
        const auto stayed = make_engine(Job{.stage = 1}.config(), *device, comm);
        load_checkpoint(moved->states(), comm, again.string());
        load_checkpoint(stayed->states(), comm, directory.string());
        train(*moved, comm, kStepsAfter);
        train(*stayed, comm, kStepsAfter);
        EXPECT_EQ(moved->states().parameter_hash(), stayed->states().parameter_hash());
      });
    }
  }
}

TEST(EngineReshard, AnyShardGroupLoadsWhatAnyOtherSaved) {
  const std::vector<Job> jobs = {{.world_size = 4, .stage = 0},
                                 {.world_size = 4, .stage = 2},
                                 {.world_size = 4, .stage = 1, .shard_group = 2},
                                 {.world_size = 4, .stage = 3, .shard_group = 2},
                                 {.world_size = 4, .stage = 2, .shard_group = 1}};
  for (const Job& saving : jobs) {
    const TemporaryDirectory directory;
    const auto expected = train_and_save(saving, directory.string());
    for (const Job& loading : jobs) {
      with_engine(loading.world_size, loading.config(), [&](Engine& engine, Communicator& comm) {
        load_checkpoint(engine.states(), comm, directory.string());
        EXPECT_EQ(engine.states().parameter_hash(), expected.first);
        train(engine, comm, kStepsAfter);
        EXPECT_EQ(engine.states().parameter_hash(), expected.second)
            << "stage " << saving.stage << " in groups of " << saving.shard_group << " to stage "
            << loading.stage << " in groups of " << loading.shard_group;
      });
    }
  }
}

}  // namespace
}  // namespace zerorun
