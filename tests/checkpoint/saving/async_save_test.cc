#include "tests/checkpoint/fake_engine.h"
#include "tests/checkpoint/temporary_directory.h"
#include "tests/common.h"
#include "tests/harness.h"
#include "zerorun/checkpoint.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

namespace fs = std::filesystem;
using testing::FakeEngine;
using testing::names_in;
using testing::run_ranks;
using testing::TemporaryDirectory;

using State = AsyncSaver::State;

// 12 MB on rank 0, 6 MB on rank 1, and small parameters.
struct LargeModel {
  testing::FakeModel model;
  testing::Cuts cuts = {{{0, 0, 1'000'000}, {1, 0, 7}}, {{0, 1'000'000, 500'000}, {1, 7, 4}}};
  LargeModel() {
    model.specs = {{"large", {1'500'000}, "m", 0, true, ""}, {"small", {11}, "m", 1, true, ""}};
  }
};

void expect_loads(Communicator& comm, const LargeModel& large, const std::string& directory,
                  const std::string& tag, uint64_t seed) {
  FakeEngine engine(large.model, large.cuts, comm, 99);
  const FakeEngine expected(large.model, large.cuts, comm, seed);
  EXPECT_EQ(load_checkpoint(engine, comm, directory, tag).tag, tag);
  EXPECT_EQ(engine.bytes(), expected.bytes());
}

TEST(AsyncSave, HoldsTheStatesAsTheyWereWhenItBegan) {
  const LargeModel large;
  for (const uint64_t buffer_nbytes : {0UL, 100'000UL}) {
    const TemporaryDirectory directory;
    run_ranks(2, [&](Communicator& comm) {
      FakeEngine engine(large.model, large.cuts, comm, 1);
      AsyncSaver saver(engine, comm, {.buffer_nbytes = buffer_nbytes});
      EXPECT_EQ(saver.state(), State::idle);
      saver.save({directory.string(), "one", R"({"epoch": 1})"});
      engine.fill(2);  // the training goes on
      saver.wait();
      EXPECT_EQ(saver.state(), State::idle);
      expect_loads(comm, large, directory.string(), "one", 1);
    });
    EXPECT_THAT(names_in(directory.path()), ElementsAre("latest", "one"));
  }
}

TEST(AsyncSave, WritesTheSameFilesAsABlockingSave) {
  const LargeModel large;
  const TemporaryDirectory directory;
  const std::array<std::byte, 8> bytes{std::byte{1}, std::byte{2}};
  run_ranks(2, [&](Communicator& comm) {
    FakeEngine engine(large.model, large.cuts, comm, 1);
    std::array<std::byte, 8> buffer = bytes;
    SaveOptions options{.directory = directory.string(), .tag = "blocking", .client_state = "{}"};
    options.buffers = {{"running", "F32", {2}, buffer}};
    save_checkpoint(engine, comm, options);
    AsyncSaver saver(engine, comm);
    options.tag = "async";
    saver.save(options);
    buffer.fill(std::byte{7});  // the module's buffers change too
    saver.wait();
  });
  const SavedModel one(directory.string(), "blocking");
  const SavedModel other(directory.string(), "async");
  EXPECT_EQ(one.parameters().size(), other.parameters().size());
  std::array<std::byte, 8> saved{};
  other.read_buffer(0, saved);
  EXPECT_EQ(saved, bytes);
  const auto content = [&](const char* tag, const char* prefix) {
    for (const std::string& name : names_in(directory.path() / tag)) {
      if (name.starts_with(prefix)) return testing::read_file(directory.path() / tag / name);
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

TEST(AsyncSave, OffloadedStatesAreReadOnce) {
  const LargeModel large;
  const TemporaryDirectory directory;
  run_ranks(2, [&](Communicator& comm) {
    OffloadedEngine engine(large.model, large.cuts, comm, 1);
    AsyncSaver saver(engine, comm, {.buffer_nbytes = 100'000});
    for (const int saves : {1, 2}) {
      saver.save({directory.string(), "one", ""});
      saver.wait();
      EXPECT_EQ(engine.reads(), saves);
    }
    expect_loads(comm, large, directory.string(), "one", 1);
  });
}

TEST(AsyncSave, ASecondSaveWaitsForTheFirst) {
  const LargeModel large;
  const TemporaryDirectory directory;
  run_ranks(2, [&](Communicator& comm) {
    FakeEngine engine(large.model, large.cuts, comm, 1);
    AsyncSaver saver(engine, comm);
    for (const uint64_t seed : {1, 2, 3}) {
      engine.fill(seed);
      saver.save({directory.string(), "s" + std::to_string(seed), ""});
    }
    saver.wait();
    for (const uint64_t seed : {1, 2, 3}) {
      expect_loads(comm, large, directory.string(), "s" + std::to_string(seed), seed);
    }
  });
  EXPECT_THAT(names_in(directory.path()), ElementsAre("latest", "s1", "s2", "s3"));
}

TEST(AsyncSave, PollingReportsTheEndOfASave) {
  const LargeModel large;
  const TemporaryDirectory directory;
  run_ranks(2, [&](Communicator& comm) {
    FakeEngine engine(large.model, large.cuts, comm, 1);
    AsyncSaver saver(engine, comm);
    EXPECT_TRUE(saver.poll());
    saver.save({directory.string(), "one", ""});
    while (!saver.poll()) {
    }
    EXPECT_EQ(saver.state(), State::idle);
    expect_loads(comm, large, directory.string(), "one", 1);
  });
}

// How an error is asked for.
enum class Asked { by_poll, by_the_next_save, by_waiting, alone };

std::string error_of(AsyncSaver& saver, Asked asked, const SaveOptions& options) {
  try {
    switch (asked) {
      case Asked::by_poll:
        while (!saver.poll()) {
        }
        break;
      case Asked::by_the_next_save:
        saver.save(options);
        break;
      case Asked::by_waiting:
        saver.wait();
        break;
      case Asked::alone:
        saver.wait_alone();
        break;
    }
  } catch (const IoError& error) {
    return error.what();
  }
  return "saved";
}

TEST(AsyncSave, FullDiskOnOneRankIsAnErrorOnAllAndChangesNothing) {
  const LargeModel large;
  for (const Asked asked : {Asked::by_poll, Asked::by_the_next_save, Asked::by_waiting}) {
    for (const char* tag : {"new", "good"}) {
      const TemporaryDirectory directory;
      run_ranks(2, [&](Communicator& comm) {
        FakeEngine engine(large.model, large.cuts, comm, 1);
        save_checkpoint(engine, comm, {directory.string(), "good", ""});
      });
      {
        const testing::FileSizeLimit limit(10'000'000);  // rank 1's file is smaller
        run_ranks(2, [&](Communicator& comm) {
          FakeEngine engine(large.model, large.cuts, comm, 2);
          AsyncSaver saver(engine, comm);
          const SaveOptions options{directory.string(), tag, ""};
          saver.save(options);
          EXPECT_THAT(error_of(saver, asked, options),
                      AllOf(HasSubstr("rank 0 of 2: cannot write"), HasSubstr("rank00000-"),
                            HasSubstr("File too large"), HasSubstr("the checkpoint needs 18")));
          EXPECT_EQ(saver.state(), State::idle);
        });
      }
      EXPECT_THAT(names_in(directory.path()), ElementsAre("good", "latest"));
      EXPECT_EQ(names_in(directory.path() / "good").size(), 3U);
      run_ranks(2, [&](Communicator& comm) {
        expect_loads(comm, large, directory.string(), "good", 1);
        FakeEngine engine(large.model, large.cuts, comm, 3);
        AsyncSaver saver(engine, comm);
        saver.save({directory.string(), "next", ""});
        saver.wait();
        expect_loads(comm, large, directory.string(), "next", 3);
      });
    }
  }
}

TEST(AsyncSave, APeersFailureIsAnErrorForRankZeroThatWaitsAlone) {
  LargeModel large;
  std::swap(large.cuts[0], large.cuts[1]);  // now rank 1 has the large part
  const TemporaryDirectory directory;
  const testing::FileSizeLimit limit(10'000'000);
  run_ranks(2, [&](Communicator& comm) {
    FakeEngine engine(large.model, large.cuts, comm, 2);
    AsyncSaver saver(engine, comm);
    saver.save({directory.string(), "new", ""});
    const std::string error = error_of(saver, Asked::alone, {});
    EXPECT_THAT(error,
                HasSubstr(comm.rank() == 0 ? "rank 1 could not write its part" : "File too large"));
  });
  EXPECT_THAT(names_in(directory.path()), ElementsAre());
}

TEST(AsyncSave, AnErrorThatNobodyAskedForIsLogged) {
  const LargeModel large;
  const TemporaryDirectory directory;
  const testing::FileSizeLimit limit(1'000'000);
  const auto comm = make_communicator({});
  ::testing::internal::CaptureStderr();
  {
    FakeEngine engine(large.model, large.cuts[0], 1);
    AsyncSaver saver(engine, *comm);
    saver.save({directory.string(), "new", ""});
    while (saver.state() == State::saving) {
    }
    EXPECT_EQ(saver.state(), State::failed);
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("cannot write"));
}

TEST(AsyncSave, OptionsThatCannotBeFollowedAreErrorsAtOnce) {
  const LargeModel large;
  const TemporaryDirectory directory;
  run_ranks(2, [&](Communicator& comm) {
    FakeEngine engine(large.model, large.cuts, comm, 1);
    AsyncSaver saver(engine, comm);
    EXPECT_THROW(saver.save({directory.string(), "a/b", ""}), ConfigError);
    EXPECT_THROW(saver.save({directory.string(), "tag", "no JSON"}), ConfigError);
    EXPECT_THROW(saver.save({"/proc/zerorun", "tag", ""}), IoError);
    EXPECT_EQ(saver.state(), State::idle);
    saver.save({directory.string(), "tag", ""});
    saver.wait();
  });
  EXPECT_THAT(names_in(directory.path()), ElementsAre("latest", "tag"));
}

TEST(AsyncSave, MemoryIsWhatTheRankSavesUnlessToldOtherwise) {
  const LargeModel large;
  FakeEngine engine(large.model, large.cuts[0], 1);
  const uint64_t whole = snapshot_nbytes(engine);
  EXPECT_GE(whole, checkpoint_nbytes(engine) - 4096);
  EXPECT_LT(whole, checkpoint_nbytes(engine) - 4096 + 512);
  EXPECT_EQ(snapshot_nbytes(engine, 1000), 1024U);
  EXPECT_EQ(snapshot_nbytes(engine, uint64_t{1} << 40), whole);
}

}  // namespace
}  // namespace zerorun
