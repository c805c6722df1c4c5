

#include "core/check.h"
#include "tests/checkpoint/temporary_directory.h"
#include "tests/common.h"
#include "tests/paths.h"
#include "tests/zero/toy_run.h"
#include "zerorun/checkpoint.h"

namespace zerorun {
namespace {

using testing::run_ranks;
using testing::TemporaryDirectory;
using testing::toy_initialize;
using testing::toy_specs;
using testing::toy_step;
using testing::ToyModel;

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
  Config config;
  config.batch.accumulation_steps = 1;
  config.precision.param_dtype = DType::bf16;
  config.optimizer.type = type;
  config.zero.stage = stage;
  config.zero.reduce_bucket_size = 900;
  config.zero.param_persistence_threshold = 0;
  config.offload.optimizer.device = home.device;
  config.offload.optimizer.nvme_path = test_paths::build();
  config.offload.optimizer.ratio = home.ratio;
  if (stage == 3) config.offload.param.device = home.param;
  config.offload.param.nvme_path = test_paths::build();
  config.offload.param.max_in_cpu = 300;
  config.offload.sub_group_size = 700;
  config.offload.aio.block_size = 4096;
  return config;
}

// Trains to step 2, saves, and trains to step 4; or resumes instead of the first two steps.
uint64_t train(const Config& config, int world_size, const std::string& save,
               const std::string& resume) {
  uint64_t hash = 0;
  run_ranks(world_size, [&](Communicator& comm) {
    const auto device = make_cpu_device();
    const auto engine = Engine::create(config, *device, comm, toy_specs(), ToyModel::groups());
    toy_initialize(*engine);
    if (resume.empty()) {
      for (int64_t step = 0; step < 2; ++step) toy_step(*engine, comm, config, step);
    } else {
      EXPECT_EQ(load_checkpoint(engine->states(), comm, resume).step, 2);
    }
    if (!save.empty()) save_checkpoint(engine->states(), comm, {.directory = save});
    for (int64_t step = 2; step < 4; ++step) toy_step(*engine, comm, config, step);
    const uint64_t result = engine->states().parameter_hash();
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
