#include "checkpoint/files/layout.h"
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

// Hosts with a disk each: a folder of its own for the ranks of each. That is all that tells them
// apart.
class NodeLocal : public ::testing::Test {
 protected:
  using Host = std::function<std::string(int rank)>;

  fs::path disk(const std::string& host) const { return directory_.path() / host; }

  // An engine that has made as many steps as its seed.
  FakeEngine engine_of(const testing::Cuts& cuts, const Communicator& comm, uint64_t seed) const {
    FakeEngine engine(model_, cuts, comm, seed);
    engine.set_progress({.step_count = static_cast<int64_t>(seed)});
    return engine;
  }
  void save(int world_size, const Host& host_of, const std::string& tag, uint64_t seed,
            const std::vector<NamedTensor>& buffers = {}) const {
    const testing::Cuts cuts = testing::random_cuts(model_, world_size, 7);
    testing::run_ranks(world_size, [&](Communicator& comm) {
      FakeEngine engine = engine_of(cuts, comm, seed);
      save_checkpoint(engine, comm,
                      {.directory = disk(host_of(comm.rank())).string(),
                       .tag = tag,
                       .client_state = fmt::format("{{\"rank\": {}}}", comm.rank()),
                       .buffers = buffers,
                       .node_local = true});
    });
  }
  // Each rank's error, or "" where all that it holds is as it was saved.
  std::vector<std::string> load(int world_size, const Host& host_of, uint64_t seed,
                                const std::string& tag = "") const {
    const testing::Cuts cuts = testing::random_cuts(model_, world_size, 8);
    std::vector<std::string> results(static_cast<size_t>(world_size));
    testing::run_ranks(world_size, [&](Communicator& comm) {
      std::string& result = results[static_cast<size_t>(comm.rank())];
      FakeEngine engine(model_, cuts, comm, 99);
      const std::string before = engine.bytes();
      try {
        const std::string own = disk(host_of(comm.rank())).string();
        const std::string folder = share_checkpoint(engine, comm, own, tag);
        if (folder.empty()) {
          result = "none";
          return;
        }
        const LoadedCheckpoint loaded = load_checkpoint(engine, comm, folder);
        if (loaded.client_state != "{\"rank\": 0}") result = loaded.client_state;
        if (engine.bytes() != engine_of(cuts, comm, seed).bytes()) result = "differs";
      } catch (const CheckpointError& error) {
        result = error.what();
        if (engine.bytes() != before) result += " and has changed";
      }
    });
    return results;
  }
  std::vector<std::string> files_of(const std::string& host, const std::string& tag) const {
    return names_in(disk(host) / tag);
  }
  static int count(const std::vector<std::string>& names, bool (*is_kind)(std::string_view)) {
    return static_cast<int>(
        std::count_if(names.begin(), names.end(), [&](const auto& name) { return is_kind(name); }));
  }

  static std::string two_hosts(int rank) { return rank < 2 ? "a" : "b"; }

  const testing::FakeModel model_ = testing::small_model();
  const std::vector<std::string> fine_ = std::vector<std::string>(4);

 private:
  testing::TemporaryDirectory directory_;
};

TEST_F(NodeLocal, EachHostKeepsTheFilesOfItsRanksAndTheHeadersOfTheOthers) {
  save(4, two_hosts, "step1", 1);
  for (const char* host : {"a", "b"}) {
    const auto files = files_of(host, "step1");
    EXPECT_EQ(count(files, is_shard_name), 2);
    EXPECT_EQ(count(files, is_header_name), 2);
    EXPECT_EQ(files.size(), 5U);  // and the manifest
    EXPECT_THAT(names_in(disk(host)), ElementsAre("latest", "step1"));
  }
  EXPECT_EQ(load(4, two_hosts, 1), fine_);
}

TEST_F(NodeLocal, SavingATagAgainReplacesItOnEveryDisk) {
  save(4, two_hosts, "same", 1);
  save(4, two_hosts, "same", 2);
  for (const char* host : {"a", "b"}) EXPECT_EQ(files_of(host, "same").size(), 5U);
  EXPECT_EQ(load(4, two_hosts, 2), fine_);
}

TEST_F(NodeLocal, RanksThatMoveToOtherHostsGetWhatTheyNeed) {
  save(4, two_hosts, "step1", 1);
  EXPECT_EQ(load(
                4, [](int rank) { return rank % 2 == 0 ? "b" : "a"; }, 1),
            fine_);
}

TEST_F(NodeLocal, AHostThatHasNothingStartsFromTheOthers) {
  constexpr int64_t kNumel = 5'000'000;  // more than is copied at once
  std::vector<float> values(kNumel);
  std::iota(values.begin(), values.end(), 0.0F);
  save(4, two_hosts, "step1", 1, {{"table", "F32", {kNumel}, std::as_bytes(std::span(values))}});
  const auto three = [](int rank) { return std::string(1, static_cast<char>("cab"[rank % 3])); };
  EXPECT_EQ(load(4, three, 1), fine_);
  std::vector<float> found(kNumel);
  SavedModel((disk("c") / "step1").string())
      .read_buffer(0, std::as_writable_bytes(std::span(found)));
  EXPECT_EQ(found, values);
}

TEST_F(NodeLocal, ANewerCheckpointOfWhichHostsLackFilesLeavesThatOfTheLowestRank) {
  save(4, two_hosts, "step1", 1);
  fs::copy(disk("a"), disk("old"), fs::copy_options::recursive);
  save(4, two_hosts, "step2", 2);
  // As after a crash between the commits of two disks: the second's latest is newer.
  fs::remove_all(disk("a"));
  fs::rename(disk("old"), disk("a"));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(load(4, two_hosts, 1), fine_);
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      ::testing::MatchesRegex(".*rank 2's host has step2 .step 2., but no rank of this job "
                              "finds rank00000-.*written on .*: step1 .step 1. is loaded\n"));
  EXPECT_EQ(load(
                4, [](int) { return "c"; }, 1),
            std::vector<std::string>(4, "none"));
}

TEST_F(NodeLocal, AHostThatWasAwayDoesNotTakeTheJobBack) {
  save(4, two_hosts, "step1", 1);
  const auto without_a = [](int rank) { return rank < 2 ? "b" : "c"; };
  save(4, without_a, "step2", 2);
  save(4, without_a, "step3", 3);
  const auto with_a = [](int rank) { return std::string(1, static_cast<char>("aabc"[rank])); };
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(load(4, with_a, 3), fine_);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("rank 2's host has step3 (step 3), that of a lower rank only step1"));
  EXPECT_EQ(load(4, with_a, 1, "step1"), fine_);  // asked for by name
}

TEST_F(NodeLocal, AnotherSaveOfTheSameTagOnOneHostIsNotMixedIn) {
  save(4, two_hosts, "same", 1);
  save(
      4, [](int) { return "c"; }, "same", 2);
  const auto files = files_of("c", "same");
  const auto three = [](int rank) { return std::string(1, static_cast<char>("aabc"[rank])); };
  for (const std::string& error : load(4, three, 1, "same")) {
    EXPECT_THAT(error, HasSubstr("c/same is of another save than the checkpoint of that name which "
                                 "rank 0's host has"));
  }
  EXPECT_EQ(files_of("c", "same"), files);
}

TEST_F(NodeLocal, WhatNoHostHasIsNamedAndNothingChanges) {
  save(4, two_hosts, "step1", 1);
  for (const std::string& error : load(
           2, [](int) { return "a"; }, 1)) {
    EXPECT_THAT(error, HasSubstr("no rank of this job finds rank00002-"));
    EXPECT_THAT(error, HasSubstr("(written on "));
    EXPECT_THAT(error, Not(HasSubstr("has changed")));
  }
}

TEST_F(NodeLocal, ADamagedFileIsFoundWhereItIsCopiedTo) {
  save(4, two_hosts, "step1", 1);
  for (const std::string& name : files_of("b", "step1")) {
    if (!is_shard_name(name)) continue;
    std::string bytes = testing::read_file(disk("b") / "step1" / name);
    bytes.back() ^= 1;
    testing::write_file(disk("b") / "step1" / name, bytes);
  }
  for (const std::string& error : load(
           4, [](int rank) { return rank < 3 ? "a" : "b"; }, 1)) {
    EXPECT_THAT(error, HasSubstr("damaged"));
  }
}

TEST_F(NodeLocal, ASaveBesideTheTrainingIsCompleteWhenARankIsTold) {
  enum class Told { by_poll, by_the_next_save, at_the_end };
  int tag = 0;
  for (const Told told : {Told::by_poll, Told::by_the_next_save, Told::at_the_end}) {
    const auto name = fmt::format("step{}", ++tag);
    const testing::Cuts cuts = testing::random_cuts(model_, 4, 7);
    testing::run_ranks(4, [&](Communicator& comm) {
      FakeEngine engine = engine_of(cuts, comm, 1);
      AsyncSaver saver(engine, comm);
      SaveOptions options{.directory = disk(two_hosts(comm.rank())).string(),
                          .tag = name,
                          .client_state = "{\"rank\": 0}",
                          .node_local = true};
      saver.save(options);
      engine.fill(2);
      engine.set_progress({.step_count = 2});
      while (told == Told::by_poll && !saver.poll()) {
      }
      options.tag = "last";
      if (told == Told::by_the_next_save) saver.save(options);
      saver.wait_alone();
    });
    for (const char* host : {"a", "b"}) {
      EXPECT_EQ(count(files_of(host, name), is_shard_name), 2);
      EXPECT_EQ(count(files_of(host, name), is_header_name), 2);
    }
    EXPECT_EQ(load(4, two_hosts, 1, name), fine_);
  }
  EXPECT_EQ(load(4, two_hosts, 2, "last"), fine_);
}

TEST_F(NodeLocal, ASaveBesideTheTrainingThatOneHostCannotMakeLeavesTheOneBefore) {
  save(4, two_hosts, "step1", 1);
  fs::create_directories(disk("b") / "step2" / "checkpoint.json");  // no file takes its place
  const testing::Cuts cuts = testing::random_cuts(model_, 4, 7);
  testing::run_ranks(4, [&](Communicator& comm) {
    FakeEngine engine(model_, cuts, comm, 2);
    AsyncSaver saver(engine, comm);
    const SaveOptions options{
        .directory = disk(two_hosts(comm.rank())).string(), .tag = "step2", .node_local = true};
    saver.save(options);
    EXPECT_THROW(saver.wait(), IoError);
  });
  EXPECT_THAT(names_in(disk("a")), ElementsAre("latest", "step1"));
  EXPECT_EQ(load(4, two_hosts, 1), fine_);
}

TEST_F(NodeLocal, OneDiskForAllIsAnOrdinaryCheckpoint) {
  save(
      4, [](int) { return "a"; }, "step1", 1);
  EXPECT_EQ(count(files_of("a", "step1"), is_header_name), 0);
  EXPECT_EQ(load(4, two_hosts, 1), fine_);
}

}  // namespace
}  // namespace zerorun
