#include "checkpoint/files/layout.h"
#include "tests/checkpoint/fake_engine.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;

// Hosts with a disk each: a folder of its own for the ranks of each. That is all that tells them
// apart. A job is the letters of its ranks' hosts: "aabb" has two hosts of two ranks.
class NodeLocal : public ::testing::Test {
 protected:
  fs::path disk(const std::string& host) const { return directory_.path() / host; }
  SaveOptions options(const std::string& job, const Communicator& comm,
                      const std::string& tag) const {
    const std::string host(1, job[static_cast<size_t>(comm.rank())]);
    return {.directory = disk(host).string(), .tag = tag, .node_local = true};
  }
  Sharded sharded(const std::string& job, uint32_t cuts) const {
    const auto ranks = static_cast<int>(job.size());
    return {.cuts = random_cuts(small_model(), ranks, cuts)};
  }

  // Engines that have made as many steps as their seed.
  void save(const std::string& job, const std::string& tag, uint64_t seed,
            const std::vector<NamedTensor>& buffers = {}) const {
    sharded(job, 7).run(seed, [&](FakeEngine& engine, Communicator& comm) {
      engine.set_progress({.step_count = static_cast<int64_t>(seed)});
      SaveOptions own = options(job, comm, tag);
      own.client_state = fmt::format("{{\"rank\": {}}}", comm.rank());
      own.buffers = buffers;
      save_checkpoint(engine, comm, own);
    });
  }
  // Each rank's error, or "" where all that it holds is as it was saved.
  std::vector<std::string> load(const std::string& job, uint64_t seed,
                                const std::string& tag = "") const {
    const Sharded loading = sharded(job, 8);
    std::vector<std::string> results(job.size());
    loading.run(99, [&](FakeEngine& engine, Communicator& comm) {
      std::string& result = results[static_cast<size_t>(comm.rank())];
      const std::string before = engine.bytes();
      try {
        const std::string own = options(job, comm, tag).directory;
        const std::string folder = share_checkpoint(engine, comm, own, tag);
        if (folder.empty()) {
          result = "none";
          return;
        }
        const LoadedCheckpoint loaded = load_checkpoint(engine, comm, folder);
        if (loaded.client_state != "{\"rank\": 0}") result = loaded.client_state;
        FakeEngine expected = loading.engine(comm, seed);
        expected.set_progress({.step_count = static_cast<int64_t>(seed)});
        if (engine.bytes() != expected.bytes()) result = "differs";
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
  // Files and headers of ranks on a host.
  std::pair<int, int> counts(const std::string& host, const std::string& tag) const {
    std::pair<int, int> found;
    for (const std::string& name : files_of(host, tag)) {
      found.first += is_shard_name(name) ? 1 : 0;
      found.second += is_header_name(name) ? 1 : 0;
    }
    return found;
  }

  const std::vector<std::string> fine_ = std::vector<std::string>(4);

 private:
  TemporaryDirectory directory_;
};

TEST_F(NodeLocal, EachHostKeepsTheFilesOfItsRanksAndTheHeadersOfTheOthers) {
  for (const uint64_t seed : {1, 2}) {  // the second replaces the first
    save("aabb", "step1", seed);
    for (const char* host : {"a", "b"}) {
      EXPECT_EQ(counts(host, "step1"), std::pair(2, 2));
      EXPECT_EQ(files_of(host, "step1").size(), 5U);  // and the manifest
      EXPECT_THAT(names_in(disk(host)), ElementsAre("latest", "step1"));
    }
    EXPECT_EQ(load("aabb", seed), fine_);
  }
  EXPECT_EQ(load("baba", 2), fine_);  // ranks that move get what they need
}

TEST_F(NodeLocal, AHostThatHasNothingStartsFromTheOthers) {
  constexpr int64_t kNumel = 5'000'000;  // more than is copied at once
  std::vector<float> values(kNumel);
  std::iota(values.begin(), values.end(), 0.0F);
  save("aabb", "step1", 1, {{"table", "F32", {kNumel}, std::as_bytes(std::span(values))}});
  EXPECT_EQ(load("cabc", 1), fine_);
  std::vector<float> found(kNumel);
  SavedModel((disk("c") / "step1").string())
      .read_buffer(0, std::as_writable_bytes(std::span(found)));
  EXPECT_EQ(found, values);
}

TEST_F(NodeLocal, ANewerCheckpointOfWhichHostsLackFilesLeavesThatOfTheLowestRank) {
  save("aabb", "step1", 1);
  fs::copy(disk("a"), disk("old"), fs::copy_options::recursive);
  save("aabb", "step2", 2);
  // As after a crash between the commits of two disks: the second's latest is newer.
  fs::remove_all(disk("a"));
  fs::rename(disk("old"), disk("a"));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(load("aabb", 1), fine_);
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      ::testing::MatchesRegex(".*rank 2's host has step2 .step 2., but no rank of this job "
                              "finds rank00000-.*written on .*: step1 .step 1. is loaded\n"));
  EXPECT_EQ(load("cccc", 1), std::vector<std::string>(4, "none"));
}

TEST_F(NodeLocal, AHostThatWasAwayDoesNotTakeTheJobBack) {
  save("aabb", "step1", 1);
  save("bbcc", "step2", 2);
  save("bbcc", "step3", 3);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(load("aabc", 3), fine_);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("rank 2's host has step3 (step 3), that of a lower rank only step1"));
  EXPECT_EQ(load("aabc", 1, "step1"), fine_);  // asked for by name
}

TEST_F(NodeLocal, AnotherSaveOfTheSameTagOnOneHostIsNotMixedIn) {
  save("aabb", "same", 1);
  save("cccc", "same", 2);
  const auto files = files_of("c", "same");
  EXPECT_THAT(load("aabc", 1, "same"),
              ::testing::Each(HasSubstr("c/same is of another save than the checkpoint of that "
                                        "name which rank 0's host has")));
  EXPECT_EQ(files_of("c", "same"), files);
}

TEST_F(NodeLocal, WhatNoHostHasIsNamedAndNothingChanges) {
  save("aabb", "step1", 1);
  EXPECT_THAT(load("aa", 1),
              ::testing::Each(HasAll("no rank of this job finds rank00002-", "(written on ",
                                     Not(HasSubstr("has changed")))));
}

TEST_F(NodeLocal, ADamagedFileIsFoundWhereItIsCopiedTo) {
  save("aabb", "step1", 1);
  for (const std::string& name : files_of("b", "step1")) {
    if (is_shard_name(name)) flip_last_bit(disk("b") / "step1" / name);
  }
  EXPECT_THAT(load("aaab", 1), ::testing::Each(HasSubstr("damaged")));
}

TEST_F(NodeLocal, ASaveBesideTheTrainingIsCompleteWhenARankIsTold) {
  for (const char* told : {"by poll", "by the next save", "at the end"}) {
    sharded("aabb", 7).run(1, [&](FakeEngine& engine, Communicator& comm) {
      engine.set_progress({.step_count = 1});
      AsyncSaver saver(engine, comm);
      SaveOptions own = options("aabb", comm, told);
      own.client_state = "{\"rank\": 0}";
      saver.save(own);
      engine.fill(2);
      engine.set_progress({.step_count = 2});
      while (told == std::string("by poll") && !saver.poll()) {
      }
      own.tag = "last";
      if (told == std::string("by the next save")) saver.save(own);
      saver.wait_alone();
    });
    for (const char* host : {"a", "b"}) EXPECT_EQ(counts(host, told), std::pair(2, 2));
    EXPECT_EQ(load("aabb", 1, told), fine_);
  }
  EXPECT_EQ(load("aabb", 2, "last"), fine_);
}

TEST_F(NodeLocal, ASaveBesideTheTrainingThatOneHostCannotMakeLeavesTheOneBefore) {
  save("aabb", "step1", 1);
  fs::create_directories(disk("b") / "step2" / "checkpoint.json");  // no file takes its place
  sharded("aabb", 7).run(2, [&](FakeEngine& engine, Communicator& comm) {
    AsyncSaver saver(engine, comm);
    saver.save(options("aabb", comm, "step2"));
    EXPECT_THROW(saver.wait(), IoError);
  });
  EXPECT_THAT(names_in(disk("a")), ElementsAre("latest", "step1"));
  EXPECT_EQ(load("aabb", 1), fine_);
}

TEST_F(NodeLocal, OneDiskForAllIsAnOrdinaryCheckpoint) {
  save("aaaa", "step1", 1);
  EXPECT_EQ(counts("a", "step1").second, 0);
  EXPECT_EQ(load("aabb", 1), fine_);
}

}  // namespace
}  // namespace zerorun::testing
