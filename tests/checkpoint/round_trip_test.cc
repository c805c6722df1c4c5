#include "tests/call_path.h"
#include "tests/checkpoint/sharded.h"

namespace zerorun {
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
  FakeModel model = testing::small_model();
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

class SmallCheckpoint : public ::testing::Test {
 protected:
  const Sharded sharded_ = {.cuts = random_cuts(testing::small_model(), 2, 1)};
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
  const Sharded whole = testing::on_one_rank();
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

}  // namespace
}  // namespace zerorun

namespace zerorun::call_path {
namespace {

// Few functions are between a save and the states that it reads, and ARCHITECTURE.md names them.
// Remembers the stack of the last visit that reads.
class WatchedEngine final : public FakeEngine {
 public:
  using FakeEngine::FakeEngine;

  void visit_states(StateAccess access, const StateVisit& visit) override {
    if (access == StateAccess::read) frames = stack();
    FakeEngine::visit_states(access, visit);
  }

  Frames frames;
};

TEST(SavePathTest, OfACheckpoint) {
  const TemporaryDirectory directory;
  const FakeModel model = testing::small_model();
  const testing::Cuts cuts = random_cuts(model, 2, 1);
  testing::run_ranks(2, [&](Communicator& comm) {
    WatchedEngine engine(model, cuts, comm, 1);
    const size_t caller = stack().size();
    save_checkpoint(engine, comm, {.directory = directory.path().string(), .tag = "a"});
    expect_path(engine.frames, caller, 7, "The path of a checkpoint");
  });
}

}  // namespace
}  // namespace zerorun::call_path
