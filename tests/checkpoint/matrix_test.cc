// Every number of ranks, stage and place of the states, to every other. Only rank 0 has gradients,
// times the number of ranks: one rank that never stops is the reference for any number of them.
// ZERORUN_MATRIX=1 runs all pairs, without it some: every job saves and loads with several others.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "core/check.h"
#include "tests/checkpoint/temporary_directory.h"
#include "tests/paths.h"
#include "tests/zero/toy_run.h"
#include "zerorun/checkpoint.h"

namespace zerorun {
namespace {

using testing::run_ranks;
using testing::TemporaryDirectory;
using testing::ToyModel;

constexpr int kSavedAfter = 2;

struct Setting {
  int ranks = 1;
  int stage = 0;
  OffloadDevice home = OffloadDevice::none;

  std::string name() const {
    constexpr const char* kHomes[] = {"plain", "cpu", "nvme"};
    return fmt::format("{} ranks, stage {}, {}", ranks, stage, kHomes[static_cast<int>(home)]);
  }
  Config config() const {
    Config config;
    config.batch.accumulation_steps = 1;
    config.precision.param_dtype = DType::fp32;
    config.zero.stage = stage;
    config.zero.reduce_bucket_size = 900;
    config.zero.param_persistence_threshold = 0;
    config.offload.optimizer.device = home;
    config.offload.optimizer.nvme_path = test_paths::build();
    if (stage == 3) config.offload.param.device = home;
    config.offload.param.nvme_path = test_paths::build();
    config.offload.param.max_in_cpu = 300;
    config.offload.sub_group_size = 700;
    config.offload.aio.block_size = 4096;
    return config;
  }
};

std::vector<Setting> all_settings() {
  std::vector<Setting> settings;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    settings.push_back({ranks, 0});
    for (int stage = 1; stage <= 3; ++stage) {
      for (const auto home : {OffloadDevice::none, OffloadDevice::cpu, OffloadDevice::nvme}) {
        settings.push_back({ranks, stage, home});
      }
    }
  }
  return settings;
}

void step(Engine& engine, const Communicator& comm) {
  const auto scale = comm.rank() == 0 ? static_cast<float>(comm.world_size()) : 0.0F;
  ToyModel::micro_step(
      engine, 0, 0, engine.states().progress().step_count,
      [](const std::string&, int) { return true; }, scale);
  engine.step();
}

// Runs `body` on every rank with an engine of the setting.
template <typename Body>
void with_engine(const Setting& setting, const Body& body) {
  const Config config = setting.config();
  run_ranks(setting.ranks, [&](Communicator& comm) {
    const auto device = make_cpu_device();
    const auto engine =
        Engine::create(config, *device, comm, testing::toy_specs(), ToyModel::groups());
    testing::toy_initialize(*engine);
    body(*engine, comm);
  });
}

uint64_t uninterrupted() {
  uint64_t hash = 0;
  with_engine({}, [&](Engine& engine, Communicator& comm) {
    for (int i = 0; i <= kSavedAfter; ++i) step(engine, comm);
    hash = engine.states().parameter_hash();
  });
  return hash;
}

TEST(Matrix, AnyJobContinuesWhatAnyOtherSaved) {
  const bool all = std::getenv("ZERORUN_MATRIX") != nullptr;
  const std::vector<Setting> settings = all_settings();
  const uint64_t expected = uninterrupted();
  int pairs = 0;
  for (size_t i = 0; i < settings.size(); ++i) {
    const TemporaryDirectory directory;
    with_engine(settings[i], [&](Engine& engine, Communicator& comm) {
      for (int n = 0; n < kSavedAfter; ++n) step(engine, comm);
      save_checkpoint(engine.states(), comm, {.directory = directory.string()});
    });
    for (size_t j = 0; j < settings.size(); ++j) {
      // 13 and 40 have no common factor: over all i, every j comes as often.
      if (!all && (13 * i + j) % settings.size() > 2) continue;
      ++pairs;
      with_engine(settings[j], [&](Engine& engine, Communicator& comm) {
        EXPECT_EQ(load_checkpoint(engine.states(), comm, directory.string()).step, kSavedAfter);
        step(engine, comm);
        EXPECT_EQ(engine.states().parameter_hash(), expected)
            << settings[i].name() << " to " << settings[j].name();
      });
    }
  }
  RecordProperty("pairs", pairs);
}

}  // namespace
}  // namespace zerorun
