#include "checkpoint/files/file.h"
#include "checkpoint/saving/save.h"
#include "os/free_space.h"
#include "tests/checkpoint/fake_engine.h"

namespace zerorun::testing {
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

struct AsyncSave : ::testing::Test {
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
  const fs::path path_ = directory_.path();
};

TEST_F(AsyncSave, HoldsTheStatesAsTheyWereWhenItBegan) {
  const auto save = [&](FakeEngine& engine, AsyncSaver& saver, Communicator& comm) {
    EXPECT_EQ(saver.state(), State::idle);
    EXPECT_TRUE(saver.poll());
    saver.save(as("one"));
    engine.fill(2);  // the training goes on
    while (!saver.poll()) {
    }
    EXPECT_EQ(saver.state(), State::idle);
    expect_loads(comm, "one", 1);
  };
  for (const uint64_t buffer_nbytes : {0UL, 100'000UL}) {
    run(1, save, {.buffer_nbytes = buffer_nbytes});
    EXPECT_THAT(names_in(path_), ElementsAre("latest", "one"));
    fs::remove_all(path_ / "one");
  }
}

TEST_F(AsyncSave, WritesTheSameFilesAsABlockingSave) {
  run(1, [&](FakeEngine& engine, AsyncSaver& saver, Communicator& comm) {
    std::array<std::byte, 8> buffer{std::byte{1}, std::byte{2}};
    SaveOptions options = as("blocking");
    options.client_state = "{}";
    options.buffers = {{"running", "F32", {2}, buffer}};
    save_checkpoint(engine, comm, options);
    options.tag = "async";
    saver.save(options);
    buffer.fill(std::byte{7});  // the module's buffers change too
    saver.wait();
  });
  const auto content = [&](const char* tag, const char* prefix) {
    for (const std::string& name : names_in(path_ / tag)) {
      if (name.starts_with(prefix)) return read_file(path_ / tag / name);
    }
    return std::string("no such file");
  };
  for (const char* prefix : {"rank00000-", "rank00001-", "buffers-"}) {
    EXPECT_EQ(content("blocking", prefix), content("async", prefix)) << prefix;
  }
}

// Its states lie elsewhere: each visit to read brings all of them in.
struct OffloadedEngine : FakeEngine {
  using FakeEngine::FakeEngine;
  void visit_states(StateAccess access, const StateVisit& visit) override {
    if (access == StateAccess::read) ++reads;
    FakeEngine::visit_states(access, [&](StateInterval interval) {
      interval.on_host = true;
      visit(interval);
    });
  }
  int reads = 0;
};

TEST_F(AsyncSave, OffloadedStatesAreReadOnce) {
  run_ranks(2, [&](Communicator& comm) {
    OffloadedEngine engine(large_.model, large_.cuts, comm, 1);
    AsyncSaver saver(engine, comm, {.buffer_nbytes = 100'000});
    for (const int saves : {1, 2}) {
      saver.save(as("one"));
      saver.wait();
      EXPECT_EQ(engine.reads, saves);
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
  EXPECT_THAT(names_in(path_), ElementsAre("latest", "s1", "s2", "s3"));
}

// Saves one way or another, and is told whether that worked.
using Save = std::function<void(FakeEngine&, Communicator&, const SaveOptions&)>;

Save beside_training(const std::function<void(AsyncSaver&, const SaveOptions&)>& ask) {
  return [=](FakeEngine& engine, Communicator& comm, const SaveOptions& options) {
    AsyncSaver saver(engine, comm);
    saver.save(options);
    const std::string error = error_of<IoError>([&] { ask(saver, options); });
    EXPECT_EQ(saver.state(), State::idle);
    if (!error.empty()) throw IoError(error);
  };
}

const Save kBlocking = [](FakeEngine& engine, Communicator& comm, const SaveOptions& options) {
  save_checkpoint(engine, comm, options);
};
const std::vector<Save> kBesideTraining = {
    beside_training([](AsyncSaver& saver, const SaveOptions&) {
      while (!saver.poll()) {
      }
    }),
    beside_training([](AsyncSaver& saver, const SaveOptions& next) { saver.save(next); }),
    beside_training([](AsyncSaver& saver, const SaveOptions&) { saver.wait(); })};

struct SaveFailure : AsyncSave {
  // A save as "new" and one as "good" fail with this error, "good" stays, and a later save works.
  void expect_good_stays(const Save& save, rlim_t disk, const std::string& client_state,
                         const ::testing::Matcher<const std::string&>& error) const {
    for (const char* tag : {"new", "good"}) {
      large_.save(as("good"));
      {
        const FileSizeLimit limit(disk);
        expect_error({directory_.string(), tag, client_state}, error, save);
      }
      EXPECT_THAT(names_in(path_), ElementsAre("good", "latest"));
      EXPECT_EQ(names_in(path_ / "good").size(), 3U);
      large_.run(3, [&](FakeEngine& engine, Communicator& comm) {
        large_.expect_loads(comm, directory_.string(), "good", 1, /*by_latest=*/true);
        save_checkpoint(engine, comm, as("next"));
        expect_loads(comm, "next", 3);
      });
      fs::remove_all(path_ / "next");
    }
  }
  // The error of a save is this on every rank.
  void expect_error(const SaveOptions& options,
                    const ::testing::Matcher<const std::string&>& expected,
                    const Save& save = kBlocking) const {
    large_.run(2, [&](FakeEngine& engine, Communicator& comm) {
      EXPECT_ERROR_OF(IoError, save(engine, comm, options), expected);
    });
  }

  // Where the other rank's file is smaller.
  const ::testing::Matcher<const std::string&> no_room_ =
      HasAll("rank 0 of 2: cannot write", "rank00000-", "File too large", "the checkpoint needs 18",
             " free");
};

TEST_F(SaveFailure, FullDiskOnOneRankIsAnErrorOnAllAndChangesNothing) {
  expect_good_stays(kBlocking, 10'000'000, "", no_room_);
}

using AsyncSaveFailure = SaveFailure;

TEST_F(AsyncSaveFailure, FullDiskOnOneRankIsAnErrorOnAllAndChangesNothing) {
  for (const Save& save : kBesideTraining) expect_good_stays(save, 10'000'000, "", no_room_);
}

// The manifest is larger than the ranks' files.
TEST_F(SaveFailure, FullDiskForTheManifestChangesNothing) {
  expect_good_stays(kBlocking, 14'000'000, "\"" + std::string(15'000'000, 'x') + "\"",
                    HasAll("rank 0 of 2: cannot write", "checkpoint.json"));
}

TEST_F(AsyncSave, APeersFailureIsAnErrorForRankZeroThatWaitsAlone) {
  std::swap(large_.cuts[0], large_.cuts[1]);  // now rank 1 has the large part
  const FileSizeLimit limit(10'000'000);
  run(2, [&](FakeEngine&, AsyncSaver& saver, Communicator& comm) {
    saver.save(as("new"));
    EXPECT_ERROR_OF(IoError, saver.wait_alone(),
                    comm.rank() == 0 ? "rank 1 could not write its part" : "File too large");
  });
  EXPECT_THAT(names_in(path_), IsEmpty());
}

TEST_F(AsyncSave, AnErrorThatNobodyAskedForIsLogged) {
  const FileSizeLimit limit(10'000'000);  // rank 1's file is smaller
  ::testing::internal::CaptureStderr();
  run(1, [&](FakeEngine&, AsyncSaver& saver, Communicator& comm) {
    saver.save(as("new"));
    while (saver.state() == State::saving) {
    }
    EXPECT_TRUE(comm.rank() != 0 || saver.state() == State::failed);
  });
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
  EXPECT_THAT(names_in(path_), ElementsAre("latest", "tag"));
}

TEST_F(AsyncSave, MemoryIsWhatTheRankSavesUnlessToldOtherwise) {
  FakeEngine engine(large_.model, large_.cuts[0], 1);
  const uint64_t whole = snapshot_nbytes(engine);
  EXPECT_GE(whole, checkpoint_nbytes(engine) - 4096);
  EXPECT_LT(whole, checkpoint_nbytes(engine) - 4096 + 512);
  EXPECT_EQ(snapshot_nbytes(engine, 1000), 1024U);
  EXPECT_EQ(snapshot_nbytes(engine, uint64_t{1} << 40), whole);
}

TEST_F(SaveFailure, FilesThatAreInTheWayAreNamed) {
  write_file(path_ / "file", "mine");
  for (const char* path : {"file", "file/deeper"}) {
    const std::string target = (path_ / path).string();
    expect_error({.directory = target},
                 HasAll("rank 0 of 2: cannot create the folder " + target, "Not a directory"));
  }
  EXPECT_EQ(read_file(path_ / "file"), "mine");
  fs::rename(path_ / "file", path_ / "step0");
  expect_error({.directory = directory_.string()}, HasSubstr("Not a directory"));
  EXPECT_THAT(names_in(path_), ElementsAre("step0"));
  expect_error({.directory = "/proc/zerorun"},
               HasSubstr("cannot create the folder /proc/zerorun: "));
}

TEST_F(SaveFailure, RanksThatDoNotSeeOneFileSystemAreToldSo) {
  const Save to_own_folder = [this](FakeEngine& engine, Communicator& comm, const SaveOptions&) {
    save_checkpoint(engine, comm, {.directory = (path_ / std::to_string(comm.rank())).string()});
  };
  expect_error({}, HasAll("rank 1 of 2: ", "is not where rank 0 made it"), to_own_folder);
  EXPECT_THAT(names_in(path_ / "0"), IsEmpty());
}

// One parameter that is larger than the disk, without the memory to match.
struct OversizedEngine : FakeEngine {
  explicit OversizedEngine(const FakeModel& model)
      : FakeEngine(model, std::vector<Cut>{}, 1), numel(model.numel(0)) {}
  using EngineStates::state_intervals;
  std::vector<StateInterval> state_intervals(std::optional<ParameterId> /*parameter*/) override {
    return {{.numel = numel, .master = {nullptr, numel, DType::fp32}}};
  }
  int64_t numel;
};

TEST_F(SaveFailure, MoreThanTheDiskHasIsRefusedBeforehand) {
  const auto numel = static_cast<int64_t>(free_space(path_).value() / 4) + (1 << 26);
  OversizedEngine engine({.specs = {{"large", {numel}, "m", 0, true, ""}}, .states = {}});
  const auto comm = make_communicator({});
  EXPECT_ERROR_OF(IoError, save_checkpoint(engine, *comm, as("new")), "the checkpoint needs",
                  "free some space");
  EXPECT_THAT(names_in(path_), IsEmpty());
  const SaveFolder gone({.directory = "/nowhere/run", .tag = "step1", .id = 1}, 10);
  EXPECT_EQ(gone.disk_use(), "the checkpoint needs 10 bytes, /nowhere/run cannot be read");
}

}  // namespace
}  // namespace zerorun::testing
