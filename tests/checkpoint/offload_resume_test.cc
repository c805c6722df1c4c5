#include "tests/checkpoint/toy_job.h"

namespace zerorun {
namespace {

using testing::TemporaryDirectory;

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

// Trains to step 2, saves, and trains to step 4; or resumes instead of the first two steps.
uint64_t train(const Config& config, int world_size, const std::string& save,
               const std::string& resume) {
  uint64_t hash = 0;
  testing::with_engine(world_size, config, [&](Engine& engine, Communicator& comm) {
    if (resume.empty()) {
      testing::train(engine, comm, 2);
    } else {
      EXPECT_EQ(load_checkpoint(engine.states(), comm, resume).step, 2);
    }
    if (!save.empty()) save_checkpoint(engine.states(), comm, {.directory = save});
    testing::train(engine, comm, 2);
    const uint64_t result = engine.states().parameter_hash();
    if (comm.rank() == 0) hash = result;
  });
  return hash;
}

TEST(OffloadResume, AnySettingLoadsWhatAnyOtherSaved) {
  for (const std::string type : {"AdamW", "AdamW8bit"}) {
    for (const Home& saving : kHomes) {
      const TemporaryDirectory directory;
      const uint64_t expected =
          train(config_of(saving, type, saving.param == OffloadDevice::none ? 2 : 3), 2,
                directory.string(), "");
      for (const Home& loading : kHomes) {
        for (const int stage : {1, 3}) {
          EXPECT_EQ(train(config_of(loading, type, stage), 2, "", directory.string()), expected)
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
  const Config plain = config_of(kHomes[0], "AdamW", 0);
  const uint64_t expected = train(nvme, 2, first.string(), "");
  EXPECT_EQ(train(nvme, 2, second.string(), first.string()), expected);
  EXPECT_EQ(train(plain, 2, "", second.string()), expected);
}

}  // namespace
}  // namespace zerorun
