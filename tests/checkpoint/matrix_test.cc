// Every number of ranks, stage, shard group and place of the states, to every other. The reference
// for two numbers of ranks is a job at stage 0 whose states are handed over in memory.
// ZERORUN_MATRIX=1 runs all pairs, without it some: every job saves and loads with several others.

#include "core/check.h"
#include "tests/checkpoint/toy_job.h"

namespace zerorun {
namespace {
using testing::train;
using testing::with_engine;

constexpr int kSavedAfter = 2;

struct Setting {
  int ranks = 1;
  int stage = 0;
  OffloadDevice home = OffloadDevice::none;
  int64_t group = 0;  // 0: of all ranks

  std::string name() const {
    constexpr const char* kHomes[] = {"plain", "cpu", "nvme"};
    return fmt::format("{} ranks, stage {}, groups of {}, {}", ranks, stage, group,
                       kHomes[static_cast<int>(home)]);
  }
  Config config() const {
    Config config = testing::job_config(stage, DType::fp32, home);
    if (stage == 3) config.offload.param.device = home;
    if (home != OffloadDevice::none && ranks % 2 == 0) config.offload.optimizer.ratio = 0.4;
    config.zero.shard_group_size = group;
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
  for (const auto& [stage, group] : {std::pair(1, 2), {3, 2}, {2, 1}}) {
    settings.push_back({4, stage, OffloadDevice::none, group});
  }
  return settings;
}

// Calls use(tensor, begin, elements) for what this rank has of all values and states, in fp32.
template <typename Use>
void for_each_part(Engine& engine, const Use& use) {
  for (const StateInterval& interval : engine.states().state_intervals()) {
    if (interval.states.empty()) continue;  // frozen
    std::vector<TensorView> views = interval.states;
    views.push_back(interval.master);
    for (size_t i = 0; i < views.size(); ++i) {
      const std::span<float> elements(views[i].as<float>(), static_cast<size_t>(views[i].numel));
      use(std::pair(interval.parameter, i), static_cast<size_t>(interval.begin), elements);
    }
  }
}

uint64_t handed_over(int from, int to) {
  std::map<std::pair<ParameterId, size_t>, std::vector<float>> tensors;
  EngineProgress progress;
  std::mutex mutex;
  with_engine(from, Setting{from}.config(), [&](Engine& engine, Communicator& comm) {
    train(engine, comm, kSavedAfter);
    const std::scoped_lock lock(mutex);
    progress = engine.states().progress();
    for_each_part(engine, [&](const auto& key, size_t begin, std::span<float> elements) {
      std::vector<float>& tensor = tensors[key];
      tensor.resize(std::max(tensor.size(), begin + elements.size()));
      std::copy(elements.begin(), elements.end(), tensor.begin() + static_cast<ptrdiff_t>(begin));
    });
  });
  uint64_t hash = 0;
  with_engine(to, Setting{to}.config(), [&](Engine& engine, Communicator& comm) {
    for_each_part(engine, [&](const auto& key, size_t begin, std::span<float> elements) {
      std::copy_n(tensors.at(key).begin() + static_cast<ptrdiff_t>(begin), elements.size(),
                  elements.begin());
    });
    engine.states().set_progress(progress);
    engine.states().refresh_from_masters();
    train(engine, comm, 1);
    const uint64_t own = engine.states().parameter_hash();
    if (comm.rank() == 0) hash = own;
  });
  return hash;
}

TEST(Matrix, AnyJobContinuesWhatAnyOtherSaved) {
  const bool all = std::getenv("ZERORUN_MATRIX") != nullptr;
  const std::vector<Setting> settings = all_settings();
  std::map<std::pair<int, int>, uint64_t> expected;
  for (int from = 1; from <= 4; ++from) {
    for (int to = 1; to <= 4; ++to) expected[{from, to}] = handed_over(from, to);
  }
  for (size_t i = 0; i < settings.size(); ++i) {
    const TemporaryDirectory directory;
    with_engine(settings[i].ranks, settings[i].config(), [&](Engine& engine, Communicator& comm) {
      train(engine, comm, kSavedAfter);
      save_checkpoint(engine.states(), comm, {.directory = directory.string()});
    });
    for (size_t j = 0; j < settings.size(); ++j) {
      // 13 and 43 have no common factor: over all i, every j comes as often.
      if (!all && (13 * i + j) % settings.size() > 2) continue;
      with_engine(settings[j].ranks, settings[j].config(), [&](Engine& engine, Communicator& comm) {
        EXPECT_EQ(load_checkpoint(engine.states(), comm, directory.string()).step, kSavedAfter);
        train(engine, comm, 1);
        EXPECT_EQ(engine.states().parameter_hash(),
                  expected.at({settings[i].ranks, settings[j].ranks}))
            << settings[i].name() << " to " << settings[j].name();
      });
    }
  }
}

}  // namespace
}  // namespace zerorun
