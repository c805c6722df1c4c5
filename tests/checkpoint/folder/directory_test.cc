#include "checkpoint/files/layout.h"
#include "checkpoint/loading/checkpoint_reader.h"
#include "checkpoint/saving/save.h"
#include "tests/checkpoint/fake_engine.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;

struct Directory : ::testing::Test {
  void save(const std::string& tag, uint64_t seed = 1, bool update_latest = true) {
    whole_.save({.directory = directory_.string(), .tag = tag, .update_latest = update_latest},
                seed);
  }
  std::string load(const std::string& tag, uint64_t seed = 1) {
    FakeEngine engine = make_engine(99);
    const LoadedCheckpoint loaded = load_checkpoint(engine, *comm_, directory_.string(), tag);
    EXPECT_EQ(engine.bytes(), make_engine(seed).bytes());
    return loaded.tag;
  }
  std::string load_error(const std::string& tag = "") {
    return error_of<CheckpointError>([&] { load(tag); });
  }
  FakeEngine make_engine(uint64_t seed) { return whole_.engine(*comm_, seed); }

  const Sharded whole_ = on_one_rank();
  TemporaryDirectory directory_;
  const fs::path path_ = directory_.path();
  std::shared_ptr<Communicator> comm_ = make_communicator({});
};

TEST_F(Directory, WhatALinkLeadsToIsKeptAndLinksAreNotCounted) {
  for (int step = 1; step <= 4; ++step) {
    FakeEngine engine = make_engine(1);
    engine.set_progress({.step_count = step});
    save_checkpoint(engine, *comm_, {.directory = path_.string(), .tag = ""});
  }
  fs::create_symlink("step1", path_ / "best");
  fs::create_symlink("step4", path_ / "newest");
  fs::create_symlink("nowhere", path_ / "dead");
  std::vector<std::string> removed;
  for (const SavedTag& saved : superfluous_tags(path_, {.last = 2})) removed.push_back(saved.tag);
  EXPECT_THAT(removed, ElementsAre("step2"));
}

// A name that cannot be followed may mean any of them.
TEST_F(Directory, NothingIsSuperfluousWhereLatestCannotBeRead) {
  for (const char* tag : {"a", "b", "c"}) save(tag);
  for (const char* target : {kLatestName, "nowhere"}) {
    fs::remove(path_ / kLatestName);
    fs::create_symlink(target, path_ / kLatestName);
    EXPECT_THROW(superfluous_tags(path_, {.last = 1}), IoError) << target;
    EXPECT_THROW(load(""), IoError) << target;
  }
  fs::remove(path_ / kLatestName);
  EXPECT_EQ(superfluous_tags(path_, {.last = 1}).size(), 2U);
}

// Root may read everything, so that root looks as somebody else.
TEST_F(Directory, WhatThisUserMayNotReadIsNotMissing) {
  save("a");
  const auto error_of_another_user = [&](const fs::path& hidden, const auto& act) {
    const bool is_root = ::geteuid() == 0;
    fs::permissions(path_, fs::perms::all);
    fs::permissions(hidden, fs::perms::none);
    EXPECT_TRUE(!is_root || ::seteuid(65534) == 0);
    const std::string text = error_of(act);
    EXPECT_TRUE(!is_root || ::seteuid(0) == 0);
    fs::permissions(hidden, fs::perms::all);
    return text;
  };
  for (const fs::path& hidden : {path_, path_ / "a"}) {
    EXPECT_THAT(error_of_another_user(hidden, [&] { load(""); }), HasSubstr("Permission denied"));
  }
  EXPECT_THAT(error_of_another_user(path_, [&] { list_tags(path_); }),
              HasSubstr("cannot read the folder " + path_.string() + ": Permission denied"));
}

// Prunes beside each other, and a save that clears leftovers away.
TEST_F(Directory, ThoseWhoRemoveTheSameCheckpointsDoNotFail) {
  save("kept");
  remove_checkpoint(path_, "already_gone");
  for (int round = 0; round < 20; ++round) {
    std::vector<std::string> tags;
    for (int i = 0; i < 10; ++i) {
      tags.push_back(fmt::format("old{}", i));
      fs::create_directory(path_ / tags.back());
      for (int file = 0; file < 20; ++file) {
        write_file(path_ / tags.back() / fmt::format("{}", file), "bytes");
      }
    }
    std::atomic<int> removing = 2;
    run_threads(3, [&](int thread) {
      if (thread == 2) {
        do {
          remove_leftovers(path_, new_save_id());
        } while (removing > 0);
        return;
      }
      for (const std::string& tag : tags) EXPECT_NO_THROW(remove_checkpoint(path_, tag)) << tag;
      --removing;
    });
    remove_leftovers(path_, new_save_id());
    EXPECT_THAT(names_in(path_), ElementsAre("kept", "latest"));
  }
}

TEST_F(Directory, LatestNamesTheLastSaveUnlessThatLeavesItAlone) {
  save("side", 1, false);
  EXPECT_THAT(names_in(path_), ElementsAre("side"));
  save("main", 2);
  save("side", 3, false);
  EXPECT_EQ(load("", 2), "main");
  EXPECT_EQ(load("side", 3), "side");
  EXPECT_THAT(names_in(path_), ElementsAre("latest", "main", "side"));
}

TEST_F(Directory, SavingATagAgainReplacesItAndKeepsOtherFiles) {
  save("a", 1);
  write_file(path_ / "a" / "tokenizer.json", "{}");
  save("a", 2);
  EXPECT_EQ(load("", 2), "a");
  EXPECT_THAT(names_in(path_), ElementsAre("a", "latest"));
  EXPECT_THAT(names_in(path_ / "a"),
              ElementsAre("checkpoint.json", HasSubstr("rank00000-"), "tokenizer.json"));
}

TEST_F(Directory, LeftoversOfCrashesGoWithTheNextSaveAndNothingElse) {
  const std::string id = "0123456789abcdef";
  for (const std::string part : {"mp_rank_00", "mp_rank_01"}) {
    fs::create_directories(path_ / ("." + part + ".tmp-" + id) / "deep");
  }
  save("mp_rank_00", 1, false);  // the folder of the model's other part may be in use
  EXPECT_THAT(names_in(path_), ElementsAre(".mp_rank_01.tmp-" + id, "mp_rank_00"));
  write_file(path_ / (".latest.tmp-" + id), "step1");
  for (const char* name : {".step1.tmp-0123", ".tmp-0123456789abcdef", "x.tmp-0123456789abcdef",
                           ".gitignore", "notes.txt"}) {
    write_file(path_ / name, "mine");
  }
  save("a");
  EXPECT_THAT(names_in(path_),
              ElementsAre(".gitignore", ".step1.tmp-0123", ".tmp-0123456789abcdef", "a", "latest",
                          "mp_rank_00", "notes.txt", "x.tmp-0123456789abcdef"));
}

// As a blocking save does while an AsyncSaver of the same process writes.
TEST_F(Directory, ASaveSparesTheFolderOfAnotherThatIsUnderWay) {
  SaveFolder under_way({path_, "async", new_save_id()}, 0);
  under_way.make();
  write_file(under_way.shard(0), "bytes");
  save("blocking");
  EXPECT_NO_THROW(under_way.check_seen());
  EXPECT_TRUE(fs::exists(under_way.shard(0)));
  under_way.discard();
  EXPECT_THAT(names_in(path_), ElementsAre("blocking", "latest"));
}

TEST_F(Directory, WithoutACheckpointItIsSaidWhichThereAre) {
  EXPECT_THAT(load_error(), HasSubstr(path_.string() + " holds no checkpoints"));
  EXPECT_THROW(verify_checkpoint(path_.string(), [](const std::string&) {}), CheckpointError);
  for (const char* tag : {"step10", "step9", "best"}) save(tag);
  fs::create_directory(path_ / "no_checkpoint");
  const std::string tags = "checkpoints in " + path_.string() + ": best, step9, step10";
  EXPECT_THAT(load_error("b"), HasAll("/b holds no checkpoint; ", tags));
  fs::remove(path_ / "latest");
  EXPECT_THAT(load_error(), HasSubstr("latest does not exist; " + tags));
  write_file(path_ / "latest", "gone");
  EXPECT_THAT(load_error(), HasSubstr("gone holds no checkpoint, although latest names it; "));
  for (const char* damaged : {"../../etc", ""}) {
    write_file(path_ / "latest", damaged);
    EXPECT_THAT(load_error(), HasSubstr("latest is damaged: "));
  }
  for (int i = 11; i <= 33; ++i) {
    fs::copy(path_ / "best", path_ / fmt::format("step{}", i), fs::copy_options::recursive);
  }
  EXPECT_THAT(load_error("none"), HasAll("step14, step15", "and 6 older"));

  const auto error_of_folder = [&](const char* name) {
    FakeEngine engine = make_engine(1);
    return error_of<CheckpointError>(
        [&] { load_checkpoint(engine, *comm_, (path_ / name).string()); });
  };
  EXPECT_THAT(error_of_folder("nowhere"), HasSubstr("there is no "));
  EXPECT_THAT(error_of_folder("latest"), HasSubstr("latest is not a folder"));
}

TEST_F(Directory, NamesThatAreNotRegularFilesAreErrors) {
  save("a");
  fs::remove(path_ / "latest");
  fs::create_directory(path_ / "latest");
  EXPECT_THROW(load(""), IoError);
  fs::remove(path_ / "a" / "checkpoint.json");
  ASSERT_EQ(mkfifo((path_ / "a" / "checkpoint.json").c_str(), 0600), 0);
  EXPECT_THROW(load("a"), IoError);
}

TEST(ShardNames, OnlyOursCount) {
  EXPECT_EQ(shard_name(7, 0xabc), "rank00007-0000000000000abc.safetensors");
  EXPECT_TRUE(is_shard_name("rank123456-0000000000000abc.safetensors"));
  for (const char* name :
       {"", "rank", "rank.safetensors", "rank-0000000000000abc.safetensors",
        "rank00000.safetensors", "rank0000x-0000000000000abc.safetensors",
        "rank00000-0000000000000ABC.safetensors", "../rank00000-0000000000000abc.safetensors",
        "rank00000-0000000000000abc.safetensors2"}) {
    EXPECT_FALSE(is_shard_name(name)) << name;
  }
}

}  // namespace
}  // namespace zerorun::testing
