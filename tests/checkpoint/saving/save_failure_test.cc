#include "checkpoint/files/file.h"
#include "checkpoint/saving/save.h"
#include "os/free_space.h"
#include "tests/checkpoint/fake_engine.h"
#include "tests/checkpoint/temporary_directory.h"
#include "tests/common.h"
#include "tests/error_of.h"
#include "tests/harness.h"
#include "zerorun/checkpoint.h"

namespace zerorun {
namespace {

namespace fs = std::filesystem;
using testing::FakeEngine;
using testing::FakeModel;
using testing::FileSizeLimit;
using testing::names_in;
using testing::run_ranks;
using testing::TemporaryDirectory;

// Rank 1 holds 9 MB of the model, rank 0 the rest.
struct Uneven {
  FakeModel model;
  testing::Cuts cuts = {{{0, 0, 10}, {1, 0, 7}}, {{0, 10, 749'990}}};
  Uneven() {
    model.specs = {{"large", {750'000}, "m", 0, true, ""}, {"small", {7}, "m", 0, true, ""}};
  }
};

std::string save_error(Communicator& comm, const Uneven& uneven, const SaveOptions& options) {
  FakeEngine engine(uneven.model, uneven.cuts, comm, 2);
  return testing::error_of<IoError>([&] { save_checkpoint(engine, comm, options); });
}

void expect_previous(const Uneven& uneven, const std::string& directory) {
  run_ranks(2, [&](Communicator& comm) {
    FakeEngine engine(uneven.model, uneven.cuts, comm, 3);
    FakeEngine expected(uneven.model, uneven.cuts, comm, 1);
    EXPECT_EQ(load_checkpoint(engine, comm, directory).tag, "good");
    EXPECT_EQ(engine.bytes(), expected.bytes());
  });
}

TEST(SaveFailure, FullDiskOnOneRankIsAnErrorOnAllAndChangesNothing) {
  const TemporaryDirectory directory;
  const Uneven uneven;
  run_ranks(2, [&](Communicator& comm) {
    FakeEngine engine(uneven.model, uneven.cuts, comm, 1);
    save_checkpoint(engine, comm, {directory.string(), "good", ""});
  });
  const FileSizeLimit limit(4'000'000);  // the ranks' shared memory is smaller
  for (const char* tag : {"new", "good"}) {
    run_ranks(2, [&](Communicator& comm) {
      EXPECT_THAT(save_error(comm, uneven, {directory.string(), tag, ""}),
                  AllOf(HasSubstr("rank 1 of 2: cannot write"), HasSubstr("rank00001-"),
                        HasSubstr("File too large"), HasSubstr("the checkpoint needs 9"),
                        HasSubstr(" free")));
    });
    EXPECT_THAT(names_in(directory.path()), ElementsAre("good", "latest"));
    EXPECT_EQ(names_in(directory.path() / "good").size(), 3U);
    expect_previous(uneven, directory.string());
  }
}

// The manifest is the last and, here, the only large file.
TEST(SaveFailure, FullDiskForTheManifestChangesNothing) {
  const TemporaryDirectory directory;
  const Uneven uneven;
  run_ranks(2, [&](Communicator& comm) {
    FakeEngine engine(uneven.model, uneven.cuts, comm, 1);
    save_checkpoint(engine, comm, {directory.string(), "good", ""});
  });
  const FileSizeLimit limit(10'000'000);
  const std::string client_state = "\"" + std::string(11'000'000, 'x') + "\"";
  for (const char* tag : {"new", "good"}) {
    run_ranks(2, [&](Communicator& comm) {
      EXPECT_THAT(save_error(comm, uneven, {directory.string(), tag, client_state}),
                  AllOf(HasSubstr("rank 0 of 2: cannot write"), HasSubstr("checkpoint.json")));
    });
    EXPECT_THAT(names_in(directory.path()), ElementsAre("good", "latest"));
    EXPECT_EQ(names_in(directory.path() / "good").size(), 3U);
    expect_previous(uneven, directory.string());
  }
}

TEST(SaveFailure, DirectoryThatIsAFileIsNamed) {
  const TemporaryDirectory directory;
  const Uneven uneven;
  testing::write_file(directory.path() / "file", "mine");
  for (const char* path : {"file", "file/deeper"}) {
    const std::string target = (directory.path() / path).string();
    run_ranks(2, [&](Communicator& comm) {
      EXPECT_THAT(save_error(comm, uneven, {.directory = target}),
                  AllOf(HasSubstr("rank 0 of 2: cannot create the folder " + target),
                        HasSubstr("Not a directory")));
    });
  }
  EXPECT_EQ(testing::read_file(directory.path() / "file"), "mine");
}

TEST(SaveFailure, RanksThatDoNotSeeOneFileSystemAreToldSo) {
  const TemporaryDirectory directory;
  const Uneven uneven;
  run_ranks(2, [&](Communicator& comm) {
    const fs::path own = directory.path() / std::to_string(comm.rank());
    EXPECT_THAT(save_error(comm, uneven, {.directory = own.string()}),
                AllOf(HasSubstr("rank 1 of 2: "), HasSubstr("is not where rank 0 made it")));
  });
  EXPECT_THAT(names_in(directory.path() / "0"), ElementsAre());
}

TEST(SaveFailure, TagThatIsAFileIsNamed) {
  const TemporaryDirectory directory;
  const Uneven uneven;
  testing::write_file(directory.path() / "step0", "mine");
  run_ranks(2, [&](Communicator& comm) {
    EXPECT_THAT(save_error(comm, uneven, {.directory = directory.string()}),
                HasSubstr("Not a directory"));
  });
  EXPECT_THAT(names_in(directory.path()), ElementsAre("step0"));
}

TEST(SaveFailure, UnwritableDirectoryIsNamed) {
  const Uneven uneven;
  run_ranks(2, [&](Communicator& comm) {
    EXPECT_THAT(save_error(comm, uneven, {.directory = "/proc/zerorun"}),
                HasSubstr("cannot create the folder /proc/zerorun: "));
  });
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

TEST(SaveFailure, MoreThanTheDiskHasIsRefusedBeforehand) {
  const TemporaryDirectory directory;
  const auto comm = make_communicator({});
  FakeModel model;
  const auto numel = static_cast<int64_t>(free_space(directory.path()).value() / 4) + (1 << 26);
  model.specs = {{"large", {numel}, "m", 0, true, ""}};
  model.states.clear();
  OversizedEngine engine(model, numel);
  EXPECT_THAT([&] { save_checkpoint(engine, *comm, {.directory = directory.string()}); },
              ThrowsMessage<IoError>(
                  AllOf(HasSubstr("the checkpoint needs"), HasSubstr("free some space"))));
  EXPECT_TRUE(names_in(directory.path()).empty());
}

TEST(SaveFailure, AFolderThatIsGoneIsNotSaidToBeFull) {
  const SaveFolder folder({.directory = "/nowhere/run", .tag = "step1", .id = 1}, 10);
  EXPECT_EQ(folder.disk_use(), "the checkpoint needs 10 bytes, /nowhere/run cannot be read");
}

}  // namespace
}  // namespace zerorun
