#include "tests/checkpoint/toy_job.h"

namespace zerorun {
namespace {

constexpr int kStepsBefore = 3;
constexpr int kStepsAfter = 2;

// Trains or, if it is given a checkpoint, resumes, saves where it is told to, and trains on. The
// hashes of the parameters where it saved and at the end.
std::pair<uint64_t, uint64_t> run(int world_size, const Config& config, const std::string& resume,
                                  const std::string& save = "") {
  std::pair<uint64_t, uint64_t> hashes;
  testing::with_engine(world_size, config, [&](Engine& engine, Communicator& comm) {
    const uint64_t fresh = engine.states().parameter_hash();
    if (resume.empty()) {
      testing::train(engine, comm, kStepsBefore);
    } else {
      EXPECT_EQ(load_checkpoint(engine.states(), comm, resume).step, kStepsBefore);
    }
    if (!save.empty()) save_checkpoint(engine.states(), comm, {.directory = save});
    const uint64_t saved = engine.states().parameter_hash();
    EXPECT_NE(saved, fresh);
    testing::train(engine, comm, kStepsAfter);
    const uint64_t later = engine.states().parameter_hash();
    if (comm.rank() == 0) hashes = {saved, later};
  });
  return hashes;
}

class EngineResume : public ::testing::TestWithParam<std::tuple<int, int, DType>> {};

TEST_P(EngineResume, AnyStageContinuesWithTheSameBits) {
  const auto [saving_stage, loading_stage, dtype] = GetParam();
  const TemporaryDirectory directory;
  const auto expected = run(2, testing::job_config(saving_stage, dtype), "", directory.string());
  EXPECT_EQ(run(2, testing::job_config(loading_stage, dtype), directory.string()), expected);
}

INSTANTIATE_TEST_SUITE_P(Stages, EngineResume,
                         ::testing::Combine(::testing::Range(0, 4), ::testing::Range(0, 4),
                                            ::testing::Values(DType::bf16, DType::fp32)));

TEST(EngineReshard, AnyWorldSizeLoadsWhatAnyOtherSaved) {
  const auto config = [](int stage) { return testing::job_config(stage, DType::bf16); };
  for (int saving = 1; saving <= 4; ++saving) {
    const TemporaryDirectory directory;
    const auto expected = run(saving, config(saving % 4), "", directory.string());
    EXPECT_EQ(run(saving, config(1), directory.string()), expected);
    for (int loading = 1; loading <= 4; ++loading) {
      const TemporaryDirectory again;
      EXPECT_EQ(run(loading, config((loading + 1) % 4), directory.string(), again.string()).first,
                expected.first)
          << saving << " to " << loading;
      // Back at the first world size, the run continues as if it had never been away.
      EXPECT_EQ(run(saving, config(2), again.string()), expected) << saving << " to " << loading;
    }
  }
}

TEST(EngineReshard, AnyShardGroupLoadsWhatAnyOtherSaved) {
  const std::vector<std::pair<int, int64_t>> settings = {{0, 0}, {2, 0}, {1, 2}, {3, 2}, {2, 1}};
  const auto config_of = [](const std::pair<int, int64_t>& setting) {
    Config config = testing::job_config(setting.first, DType::bf16);
    config.zero.shard_group_size = setting.second;
    return config;
  };
  for (const auto& saving : settings) {
    const TemporaryDirectory directory;
    const auto expected = run(4, config_of(saving), "", directory.string());
    for (const auto& loading : settings) {
      EXPECT_EQ(run(4, config_of(loading), directory.string()), expected)
          << "stage " << saving.first << " in groups of " << saving.second << " to stage "
          << loading.first << " in groups of " << loading.second;
    }
  }
}

struct Home {
  const char* name;
  OffloadDevice device;
  double ratio;
  OffloadDevice param = OffloadDevice::none;  // at stage 3
};
constexpr std::array kHomes = {
    Home{"device", OffloadDevice::none, 1.0}, Home{"host", OffloadDevice::cpu, 1.0},
    Home{"both", OffloadDevice::cpu, 0.4}, Home{"nvme", OffloadDevice::nvme, 0.7},
    Home{"all on nvme", OffloadDevice::nvme, 1.0, OffloadDevice::nvme}};

Config config_of(const Home& home, const std::string& type, int stage) {
  Config config = testing::job_config(stage, DType::bf16, home.device);
  config.optimizer.type = type;
  config.offload.optimizer.ratio = home.ratio;
  if (stage == 3) config.offload.param.device = home.param;
  return config;
}

TEST(OffloadResume, AnySettingLoadsWhatAnyOtherSaved) {
  for (const std::string type : {"AdamW", "AdamW8bit"}) {
    for (const Home& saving : kHomes) {
      const TemporaryDirectory directory;
      const int saving_stage = saving.param == OffloadDevice::none ? 2 : 3;
      const auto expected = run(2, config_of(saving, type, saving_stage), "", directory.string());
      for (const Home& loading : kHomes) {
        for (const int stage : {1, 3}) {
          EXPECT_EQ(run(2, config_of(loading, type, stage), directory.string()), expected)
              << type << " saved from " << saving.name << ", loaded to " << loading.name
              << " at stage " << stage;
        }
      }
    }
  }
}

TEST(OffloadResume, ACheckpointSurvivesResumingAndSavingAgain) {
  const TemporaryDirectory first;
  const TemporaryDirectory second;
  const Config nvme = config_of(kHomes[4], "AdamW", 3);
  const auto expected = run(2, nvme, "", first.string());
  EXPECT_EQ(run(2, nvme, first.string(), second.string()), expected);
  EXPECT_EQ(run(2, config_of(kHomes[0], "AdamW", 0), second.string()), expected);
}

}  // namespace
}  // namespace zerorun
