#include "checkpoint/files/file.h"
#include "checkpoint/saving/save.h"
#include "os/free_space.h"
#include "tests/checkpoint/sharded.h"
#include "tests/common.h"
#include "tests/error_of.h"

namespace zerorun {
namespace {

namespace fs = std::filesystem;

using State = AsyncSaver::State;

// 12 MB on rank 0, 6 MB on rank 1, and small parameters.
Sharded large_model() {
  Sharded large;
  large.model.specs = {{"large", {1'500'000}, "m", 0, true, ""}, {"small", {11}, "m", 1, true, ""}};
  large.cuts = {{{0, 0, 1'000'000}, {1, 0, 7}}, {{0, 1'000'000, 500'000}, {1, 7, 4}}};
  return large;
}

class AsyncSave : public ::testing::Test {
 protected:
  // Calls body(engine, saver, comm) on every rank.
  template <typename Body>
  void run(uint64_t seed, const Body& body, const AsyncOptions& options = {}) const {
    large_.run(seed, [&](FakeEngine& engine, Communicator& comm) {
      AsyncSaver saver(engine, comm, options);
      body(engine, saver, comm);
    });
  }
  SaveOptions as(const std::string& tag) const { return {directory_.string(), tag, ""}; }
  void expect_loads(Communicator& comm, const std::string& tag, uint64_t seed) const {
    large_.expect_loads(comm, directory_.string(), tag, seed);
  }

  Sharded large_ = large_model();
  const TemporaryDirectory directory_;
};

TEST_F(AsyncSave, HoldsTheStatesAsTheyWereWhenItBegan) {
  for (const uint64_t buffer_nbytes : {0UL, 100'000UL}) {
    run(1,
        [&](FakeEngine& engine, AsyncSaver& saver, Communicator& comm) {
          EXPECT_EQ(saver.state(), State::idle);
          EXPECT_TRUE(saver.poll());
          saver.save({directory_.string(), "one", R"({"epoch": 1})"});
          engine.fill(2);  // the training goes on
          if (buffer_nbytes == 0) saver.wait();
          while (!saver.poll()) {
          }
          EXPECT_EQ(saver.state(), State::idle);
          expect_loads(comm, "one", 1);
        },
        {.buffer_nbytes = buffer_nbytes});
    EXPECT_THAT(names_in(directory_.path()), ElementsAre("latest", "one"));
    fs::remove_all(directory_.path() / "one");
  }
}

TEST_F(AsyncSave, WritesTheSameFilesAsABlockingSave) {
  const std::array<std::byte, 8> bytes{std::byte{1}, std::byte{2}};
  run(1, [&](FakeEngine& engine, AsyncSaver& saver, Communicator& comm) {
    std::array<std::byte, 8> buffer = bytes;
    SaveOptions options = as("blocking");
    options.client_state = "{}";
    options.buffers = {{"running", "F32", {2}, buffer}};
    save_checkpoint(engine, comm, options);
    options.tag = "async";
    saver.save(options);
    buffer.fill(std::byte{7});  // the module's buffers change too
    saver.wait();
  });
  const SavedModel one(directory_.string(), "blocking");
  const SavedModel other(directory_.string(), "async");
  EXPECT_EQ(one.parameters().size(), other.parameters().size());
  std::array<std::byte, 8> saved{};
  other.read_buffer(0, saved);
  EXPECT_EQ(saved, bytes);
  const auto content = [&](const char* tag, const char* prefix) {
    for (const std::string& name : names_in(directory_.path() / tag)) {
      if (name.starts_with(prefix)) return read_file(directory_.path() / tag / name);
    }
    return std::string("no such file");
  };
  for (const char* prefix : {"rank00000-", "rank00001-", "buffers-"}) {
    EXPECT_EQ(content("blocking", prefix), content("async", prefix)) << prefix;
  }
}

// Its states lie elsewhere: each visit to read brings all of them in.
class OffloadedEngine : public FakeEngine {
 public:
  using FakeEngine::FakeEngine;

  void visit_states(StateAccess access, const StateVisit& visit) override {
    if (access == StateAccess::read) ++reads_;
    FakeEngine::visit_states(access, [&](StateInterval interval) {
      interval.on_host = true;
      visit(interval);
    });
  }
  int reads() const { return reads_; }

 private:
  int reads_ = 0;
};

TEST_F(AsyncSave, OffloadedStatesAreReadOnce) {
  testing::run_ranks(2, [&](Communicator& comm) {
    OffloadedEngine engine(large_.model, large_.cuts, comm, 1);
    AsyncSaver saver(engine, comm, {.buffer_nbytes = 100'000});
    for (const int saves : {1, 2}) {
      saver.save(as("one"));
      saver.wait();
      EXPECT_EQ(engine.reads(), saves);
    }
    expect_loads(comm, "one", 1);
  });
}

TEST_F(AsyncSave, ASecondSaveWaitsForTheFirst) {
  run(1, [&](FakeEngine& engine, AsyncSaver& saver, Communicator& comm) {
    for (const uint64_t seed : {1, 2, 3}) {
      engine.fill(seed);
      saver.save(as("s" + std::to_string(seed)));
    }
    saver.wait();
    for (const uint64_t seed : {1, 2, 3}) expect_loads(comm, "s" + std::to_string(seed), seed);
  });
  EXPECT_THAT(names_in(directory_.path()), ElementsAre("latest", "s1", "s2", "s3"));
}

// Ways to be told an error: by one of them a save is waited for.
const std::vector<std::function<void(AsyncSaver&, const SaveOptions&)>> kWays = {
    [](AsyncSaver& saver, const SaveOptions&) {
      while (!saver.poll()) {
      }
    },
    [](AsyncSaver& saver, const SaveOptions& next) { saver.save(next); },
    [](AsyncSaver& saver, const SaveOptions&) { saver.wait(); }};

TEST_F(AsyncSave, FullDiskOnOneRankIsAnErrorOnAllAndChangesNothing) {
  for (const auto& ask : kWays) {
    for (const char* tag : {"new", "good"}) {
      const TemporaryDirectory directory;
      large_.save({directory.string(), "good", ""});
      {
        const FileSizeLimit limit(10'000'000);  // rank 1's file is smaller
        run(2, [&](FakeEngine&, AsyncSaver& saver, Communicator&) {
          const SaveOptions options{directory.string(), tag, ""};
          saver.save(options);
          EXPECT_THAT([&] { ask(saver, options); },
                      ThrowsMessage<IoError>(AllOf(
                          HasSubstr("rank 0 of 2: cannot write"), HasSubstr("rank00000-"),
                          HasSubstr("File too large"), HasSubstr("the checkpoint needs 18"))));
          EXPECT_EQ(saver.state(), State::idle);
        });
      }
      EXPECT_THAT(names_in(directory.path()), ElementsAre("good", "latest"));
      EXPECT_EQ(names_in(directory.path() / "good").size(), 3U);
      run(3, [&](FakeEngine&, AsyncSaver& saver, Communicator& comm) {
        large_.expect_loads(comm, directory.string(), "good", 1);
        saver.save({directory.string(), "next", ""});
        saver.wait();
        large_.expect_loads(comm, directory.string(), "next", 3);
      });
    }
  }
}

TEST_F(AsyncSave, APeersFailureIsAnErrorForRankZeroThatWaitsAlone) {
  std::swap(large_.cuts[0], large_.cuts[1]);  // now rank 1 has the large part
  const FileSizeLimit limit(10'000'000);
  run(2, [&](FakeEngine&, AsyncSaver& saver, Communicator& comm) {
    saver.save(as("new"));
    EXPECT_THAT([&] { saver.wait_alone(); },
                ThrowsMessage<IoError>(HasSubstr(
                    comm.rank() == 0 ? "rank 1 could not write its part" : "File too large")));
  });
  EXPECT_THAT(names_in(directory_.path()), ElementsAre());
}

TEST_F(AsyncSave, AnErrorThatNobodyAskedForIsLogged) {
  const FileSizeLimit limit(1'000'000);
  const auto comm = make_communicator({});
  ::testing::internal::CaptureStderr();
  {
    FakeEngine engine(large_.model, large_.cuts[0], 1);
    AsyncSaver saver(engine, *comm);
    saver.save(as("new"));
    while (saver.state() == State::saving) {
    }
    EXPECT_EQ(saver.state(), State::failed);
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("cannot write"));
}

TEST_F(AsyncSave, OptionsThatCannotBeFollowedAreErrorsAtOnce) {
  run(1, [&](FakeEngine&, AsyncSaver& saver, Communicator&) {
    EXPECT_THROW(saver.save(as("a/b")), ConfigError);
    EXPECT_THROW(saver.save({directory_.string(), "tag", "no JSON"}), ConfigError);
    EXPECT_THROW(saver.save({"/proc/zerorun", "tag", ""}), IoError);
    EXPECT_EQ(saver.state(), State::idle);
    saver.save(as("tag"));
    saver.wait();
  });
  EXPECT_THAT(names_in(directory_.path()), ElementsAre("latest", "tag"));
}

TEST_F(AsyncSave, MemoryIsWhatTheRankSavesUnlessToldOtherwise) {
  FakeEngine engine(large_.model, large_.cuts[0], 1);
  const uint64_t whole = snapshot_nbytes(engine);
  EXPECT_GE(whole, checkpoint_nbytes(engine) - 4096);
  EXPECT_LT(whole, checkpoint_nbytes(engine) - 4096 + 512);
  EXPECT_EQ(snapshot_nbytes(engine, 1000), 1024U);
  EXPECT_EQ(snapshot_nbytes(engine, uint64_t{1} << 40), whole);
}

class SaveFailure : public ::testing::Test {
 protected:
  // Rank 1 holds 9 MB of the model, rank 0 the rest.
  SaveFailure() {
    uneven_.model.specs = {{"large", {750'000}, "m", 0, true, ""},
                           {"small", {7}, "m", 0, true, ""}};
    uneven_.cuts = {{{0, 0, 10}, {1, 0, 7}}, {{0, 10, 749'990}}};
  }
  // The error of a save is this on every rank.
  void expect_error(const SaveOptions& options,
                    const ::testing::Matcher<const std::string&>& expected) const {
    uneven_.run(2, [&](FakeEngine& engine, Communicator& comm) {
      EXPECT_THAT(error_of<IoError>([&] { save_checkpoint(engine, comm, options); }), expected);
    });
  }
  // A save as "new" and one as "good" fail, and "good" stays.
  void expect_good_stays(rlim_t disk, const std::string& client_state,
                         const ::testing::Matcher<const std::string&>& error) const {
    uneven_.save({directory_.string(), "good", ""});
    const FileSizeLimit limit(disk);
    for (const char* tag : {"new", "good"}) {
      expect_error({directory_.string(), tag, client_state}, error);
      EXPECT_THAT(names_in(path_), ElementsAre("good", "latest"));
      EXPECT_EQ(names_in(path_ / "good").size(), 3U);
      testing::run_ranks(2, [&](Communicator& comm) {
        uneven_.expect_loads(comm, directory_.string(), "good", 1, /*by_latest=*/true);
      });
    }
  }

  Sharded uneven_;
  const TemporaryDirectory directory_;
  const fs::path path_ = directory_.path();
};

TEST_F(SaveFailure, FullDiskOnOneRankIsAnErrorOnAllAndChangesNothing) {
  expect_good_stays(
      4'000'000, "",  // the ranks' shared memory is smaller
      AllOf(HasSubstr("rank 1 of 2: cannot write"), HasSubstr("rank00001-"),
            HasSubstr("File too large"), HasSubstr("the checkpoint needs 9"), HasSubstr(" free")));
}

// The manifest is the last and, here, the only large file.
TEST_F(SaveFailure, FullDiskForTheManifestChangesNothing) {
  expect_good_stays(10'000'000, "\"" + std::string(11'000'000, 'x') + "\"",
                    AllOf(HasSubstr("rank 0 of 2: cannot write"), HasSubstr("checkpoint.json")));
}

TEST_F(SaveFailure, FilesThatAreInTheWayAreNamed) {
  write_file(path_ / "file", "mine");
  for (const char* path : {"file", "file/deeper"}) {
    const std::string target = (path_ / path).string();
    expect_error({.directory = target},
                 AllOf(HasSubstr("rank 0 of 2: cannot create the folder " + target),
                       HasSubstr("Not a directory")));
  }
  EXPECT_EQ(read_file(path_ / "file"), "mine");
  fs::rename(path_ / "file", path_ / "step0");
  expect_error({.directory = directory_.string()}, HasSubstr("Not a directory"));
  EXPECT_THAT(names_in(path_), ElementsAre("step0"));
  expect_error({.directory = "/proc/zerorun"},
               HasSubstr("cannot create the folder /proc/zerorun: "));
}

TEST_F(SaveFailure, RanksThatDoNotSeeOneFileSystemAreToldSo) {
  uneven_.run(2, [&](FakeEngine& engine, Communicator& comm) {
    const fs::path own = path_ / std::to_string(comm.rank());
    EXPECT_THAT([&] { save_checkpoint(engine, comm, {.directory = own.string()}); },
                ThrowsMessage<IoError>(
                    AllOf(HasSubstr("rank 1 of 2: "), HasSubstr("is not where rank 0 made it"))));
  });
  EXPECT_THAT(names_in(path_ / "0"), ElementsAre());
}

// One parameter that is larger than the disk, without the memory to match.
class OversizedEngine : public FakeEngine {
 public:
  OversizedEngine(const FakeModel& model, int64_t numel)
      : FakeEngine(model, std::vector<testing::Cut>{}, 1), numel_(numel) {}
  using EngineStates::state_intervals;
  std::vector<StateInterval> state_intervals(std::optional<ParameterId> /*parameter*/) override {
    return {{.numel = numel_, .master = {nullptr, numel_, DType::fp32}}};
  }

 private:
  int64_t numel_;
};

TEST_F(SaveFailure, MoreThanTheDiskHasIsRefusedBeforehand) {
  const auto comm = make_communicator({});
  FakeModel model;
  const auto numel = static_cast<int64_t>(free_space(path_).value() / 4) + (1 << 26);
  model.specs = {{"large", {numel}, "m", 0, true, ""}};
  model.states.clear();
  OversizedEngine engine(model, numel);
  EXPECT_THAT([&] { save_checkpoint(engine, *comm, {.directory = directory_.string()}); },
              ThrowsMessage<IoError>(
                  AllOf(HasSubstr("the checkpoint needs"), HasSubstr("free some space"))));
  EXPECT_TRUE(names_in(path_).empty());
  const SaveFolder gone({.directory = "/nowhere/run", .tag = "step1", .id = 1}, 10);
  EXPECT_EQ(gone.disk_use(), "the checkpoint needs 10 bytes, /nowhere/run cannot be read");
}

}  // namespace
}  // namespace zerorun
