#include "tests/call_path.h"
#include "tests/checkpoint/fake_engine.h"
#include "tests/checkpoint/toy_job.h"

namespace zerorun::testing {
namespace {

void change(FakeEngine& engine) {
  engine.set_progress({.step_count = 42});
  engine.groups()[0].lr = 0.3F;
}

void save(const Sharded& sharded, const SaveOptions& options) {
  sharded.run(1, [&](FakeEngine& engine, Communicator& comm) {
    change(engine);
    save_checkpoint(engine, comm, options);
  });
}

// What `saving` saves is what `loading` gets.
void expect_round_trip(const Sharded& saving, const Sharded& loading) {
  const TemporaryDirectory directory;
  save(saving, {.directory = directory.string()});
  loading.run(2, [&](FakeEngine& engine, Communicator& comm) {
    FakeEngine expected = loading.engine(comm, 1);
    change(expected);
    ASSERT_NE(engine.bytes(), expected.bytes());
    load_checkpoint(engine, comm, directory.string());
    EXPECT_EQ(engine.bytes(), expected.bytes());
    EXPECT_EQ(engine.refreshed(), 1);
  });
}

class Resharding : public ::testing::TestWithParam<std::tuple<int, int, DType>> {};

TEST_P(Resharding, GivesEveryElementBack) {
  const auto [saving, loading, dtype] = GetParam();
  FakeModel model = small_model();
  model.dtype = dtype;
  for (uint32_t seed = 0; seed < 4; ++seed) {
    expect_round_trip({model, random_cuts(model, saving, seed)},
                      {model, random_cuts(model, loading, 100 + seed)});
  }
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, Resharding,
                         ::testing::Combine(::testing::Range(1, 5), ::testing::Range(1, 5),
                                            ::testing::Values(DType::bf16, DType::fp32)));

TEST(RoundTrip, ParametersLongerThanARecord) {
  FakeModel model;
  model.specs = {{"large", {3, 1'500'001}, "m", 0, true, ""}};
  model.states.clear();
  expect_round_trip({model, random_cuts(model, 2, 1)}, {model, random_cuts(model, 3, 2)});
}

struct SmallCheckpoint : ::testing::Test {
  const Sharded sharded_ = {.cuts = random_cuts(small_model(), 2, 1)};
  const TemporaryDirectory directory_;
};

TEST_F(SmallCheckpoint, GivesClientStateBackToTheByteAndIsNamedAfterTheStep) {
  const std::string state =
      "{ \"b\": 340282366920938463463374607431768211455,\n\t\"a\": \"\\u00e9é\"}";
  const auto folder = directory_.path() / "new" / "out";
  save(sharded_, {.directory = folder.string(), .client_state = state});
  EXPECT_THAT(names_in(folder), ElementsAre("latest", "step42"));
  EXPECT_EQ(read_file(folder / "latest"), "step42\n");
  sharded_.run(2, [&](FakeEngine& engine, Communicator& comm) {
    const LoadedCheckpoint loaded = load_checkpoint(engine, comm, folder.string());
    EXPECT_EQ(loaded.client_state, state);
    EXPECT_EQ(loaded.tag, "step42");
    EXPECT_EQ(loaded.step, 42);
  });
}

TEST_F(SmallCheckpoint, LoadsFromTheFolderOfOneTag) {
  const Sharded whole = on_one_rank();
  for (const char* tag : {"a", "b"}) save(whole, {directory_.string(), tag, ""});
  for (const char* path : {"a", "a/", "b/../a"}) {
    whole.run(2, [&](FakeEngine& engine, Communicator& comm) {
      EXPECT_EQ(load_checkpoint(engine, comm, directory_.string() + "/" + path).tag, "a");
    });
  }
}

TEST_F(SmallCheckpoint, BadClientStateIsAConfigErrorOnEveryRank) {
  sharded_.run(1, [&](FakeEngine& engine, Communicator& comm) {
    for (const std::string& tag : {std::string("../up"), std::string("latest"),
                                   std::string(".hidden"), std::string(300, 'x')}) {
      EXPECT_THROW(save_checkpoint(engine, comm, {.directory = directory_.string(), .tag = tag}),
                   ConfigError)
          << tag;
    }
    for (const char* state : {"{", "{\"\xff\": 1}"}) {
      EXPECT_THROW(save_checkpoint(engine, comm, {directory_.string(), "", state}), ConfigError);
    }
    EXPECT_THROW(save_checkpoint(engine, comm, {.directory = ""}), ConfigError);
  });
  EXPECT_THAT(names_in(directory_.path()), IsEmpty());
}

// Every number of ranks, stage, shard group and place of the states, to every other. The reference
// for two numbers of ranks is a job at stage 0 whose states are handed over in memory.
// ZERORUN_MATRIX=1 runs all pairs, without it some: every job saves and loads with several others.
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
    Config config = job_config(stage, DType::fp32, home);
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
    for (const auto& [stage, home] :
         each(std::views::iota(1, 4),
              std::array{OffloadDevice::none, OffloadDevice::cpu, OffloadDevice::nvme})) {
      settings.push_back({ranks, stage, home});
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
}  // namespace zerorun::testing

namespace zerorun::call_path {
namespace {

// Few functions are between a save and the states that it reads, and ARCHITECTURE.md names them.
// Remembers the stack of the last visit that reads.
struct WatchedEngine final : testing::FakeEngine {
  using FakeEngine::FakeEngine;

  void visit_states(StateAccess access, const StateVisit& visit) override {
    if (access == StateAccess::read) frames = stack();
    FakeEngine::visit_states(access, visit);
  }

  Frames frames;
};

TEST(SavePathTest, OfACheckpoint) {
  const testing::TemporaryDirectory directory;
  const testing::FakeModel model = testing::small_model();
  const testing::Cuts cuts = testing::random_cuts(model, 2, 1);
  testing::run_ranks(2, [&](Communicator& comm) {
    WatchedEngine engine(model, cuts, comm, 1);
    const size_t caller = stack().size();
    save_checkpoint(engine, comm, {.directory = directory.path().string(), .tag = "a"});
    expect_path(engine.frames, caller, 7, "The path of a checkpoint");
  });
}

}  // namespace
}  // namespace zerorun::call_path
