#include "tests/checkpoint/fake_engine.h"
#include "tests/checkpoint/temporary_directory.h"
#include "tests/common.h"
#include "tests/harness.h"
#include "zerorun/checkpoint.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

using testing::Cuts;
using testing::FakeEngine;
using testing::FakeModel;
using testing::random_cuts;
using testing::run_ranks;
using testing::small_model;
using testing::TemporaryDirectory;

void save(const FakeModel& model, const Cuts& cuts, const SaveOptions& options) {
  run_ranks(static_cast<int>(cuts.size()), [&](Communicator& comm) {
    FakeEngine engine(model, cuts, comm, 1);
    engine.set_progress({.step_count = 42});
    engine.groups()[0].lr = 0.3F;
    save_checkpoint(engine, comm, options);
  });
}

void expect_loads(const FakeModel& model, const Cuts& cuts, const std::string& directory) {
  run_ranks(static_cast<int>(cuts.size()), [&](Communicator& comm) {
    FakeEngine engine(model, cuts, comm, 2);
    FakeEngine expected(model, cuts, comm, 1);
    expected.set_progress({.step_count = 42});
    expected.groups()[0].lr = 0.3F;
    ASSERT_NE(engine.bytes(), expected.bytes());
    load_checkpoint(engine, comm, directory);
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
    const TemporaryDirectory directory;
    save(model, random_cuts(model, saving, seed), {.directory = directory.string()});
    expect_loads(model, random_cuts(model, loading, 100 + seed), directory.string());
  }
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, Resharding,
                         ::testing::Combine(::testing::Range(1, 5), ::testing::Range(1, 5),
                                            ::testing::Values(DType::bf16, DType::fp32)));

TEST(RoundTrip, GivesClientStateBackToTheByte) {
  const FakeModel model = small_model();
  const TemporaryDirectory directory;
  const std::string state =
      "{ \"b\": 340282366920938463463374607431768211455,\n\t\"a\": \"\\u00e9é\"}";
  save(model, random_cuts(model, 2, 1), {directory.string(), "best", state});
  run_ranks(3, [&](Communicator& comm) {
    FakeEngine engine(model, random_cuts(model, 3, 7), comm, 2);
    const LoadedCheckpoint loaded = load_checkpoint(engine, comm, directory.string());
    EXPECT_EQ(loaded.client_state, state);
    EXPECT_EQ(loaded.tag, "best");
    EXPECT_EQ(loaded.step, 42);
  });
}

TEST(RoundTrip, NamesTheFolderAfterTheStep) {
  const FakeModel model = small_model();
  const TemporaryDirectory directory;
  save(model, random_cuts(model, 2, 1), {.directory = (directory.path() / "new" / "out").string()});
  EXPECT_EQ(testing::names_in(directory.path() / "new" / "out"),
            (std::vector<std::string>{"latest", "step42"}));
  EXPECT_EQ(testing::read_file(directory.path() / "new" / "out" / "latest"), "step42\n");
}

TEST(RoundTrip, LoadsFromTheFolderOfOneTag) {
  const FakeModel model = small_model();
  const TemporaryDirectory directory;
  save(model, random_cuts(model, 1, 1), {directory.string(), "a", ""});
  save(model, random_cuts(model, 1, 1), {directory.string(), "b", ""});
  for (const char* path : {"a", "a/", "b/../a"}) {
    run_ranks(1, [&](Communicator& comm) {
      FakeEngine engine(model, random_cuts(model, 1, 2), comm, 2);
      EXPECT_EQ(load_checkpoint(engine, comm, directory.string() + "/" + path).tag, "a");
    });
  }
}

TEST(RoundTrip, ParametersLongerThanARecord) {
  FakeModel model;
  model.specs = {{"large", {3, 1'500'001}, "m", 0, true, ""}};
  model.states.clear();
  const TemporaryDirectory directory;
  save(model, random_cuts(model, 2, 1), {.directory = directory.string()});
  expect_loads(model, random_cuts(model, 3, 2), directory.string());
}

TEST(RoundTrip, BadClientStateIsAConfigErrorOnEveryRank) {
  const FakeModel model = small_model();
  const TemporaryDirectory directory;
  const Cuts cuts = random_cuts(model, 2, 1);
  run_ranks(2, [&](Communicator& comm) {
    FakeEngine engine(model, cuts, comm, 1);
    for (const SaveOptions& options :
         {SaveOptions{directory.string(), "", "{"},
          SaveOptions{directory.string(), "", "{\"\xff\": 1}"}, SaveOptions{"", "", ""},
          SaveOptions{directory.string(), "../up", ""},
          SaveOptions{directory.string(), "latest", ""},
          SaveOptions{directory.string(), ".hidden", ""},
          SaveOptions{directory.string(), std::string(300, 'x'), ""}}) {
      EXPECT_THROW(save_checkpoint(engine, comm, options), ConfigError) << options.tag;
    }
  });
  EXPECT_TRUE(testing::names_in(directory.path()).empty());
}

}  // namespace
}  // namespace zerorun
