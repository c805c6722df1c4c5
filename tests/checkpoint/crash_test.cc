#include <sys/ptrace.h>

#include "tests/checkpoint/fake_engine.h"
#include "tests/checkpoint/toy_job.h"
#include "tests/refused_calls.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kCannotTrace = 77;

// A system call that has returned.
struct Call {
  uint64_t number = 0;
  std::string file;  // of those that have one as their first argument
  int64_t result = 0;
};

std::string file_of(pid_t process, uint64_t descriptor) {
  std::error_code none;
  return fs::read_symlink(fmt::format("/proc/{}/fd/{}", process, descriptor), none).string();
}

// Runs `body` in another process and calls `keep_going` after each system call of its threads;
// kills it when that returns false. How it ended, or nothing when this system does not allow
// tracing.
std::optional<int> run_traced(const std::function<void()>& body,
                              const std::function<bool(const Call&)>& keep_going) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(kCannotTrace);
    ::raise(SIGSTOP);
    body();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFSTOPPED(status)) return std::nullopt;
  ::ptrace(PTRACE_SETOPTIONS, child, nullptr,
           PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL | PTRACE_O_TRACECLONE);
  std::map<pid_t, Call> calls;  // by thread
  pid_t thread = child;
  while (true) {
    ::ptrace(PTRACE_SYSCALL, thread, nullptr, nullptr);
    thread = ::waitpid(-1, &status, __WALL);
    if (!WIFSTOPPED(status)) {
      if (thread == child) return status;
      continue;  // a thread has ended
    }
    __ptrace_syscall_info info = {};
    ::ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info);
    if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
      calls[thread].number = info.entry.nr;
      calls[thread].file = file_of(child, info.entry.args[0]);
    } else if (info.op == PTRACE_SYSCALL_INFO_EXIT) {
      calls[thread].result = info.exit.rval;
      if (!keep_going(calls[thread])) ::kill(child, SIGKILL);
    }
  }
}

// The tag of a save, and whether a thread writes it.
struct SaveCase {
  const char* tag = "";
  bool beside = false;
};

// A directory that holds one good checkpoint, and a save that is about to add another.
struct Crash : ::testing::TestWithParam<SaveCase> {
  Crash() {
    fs::create_directory(before_);
    whole_.save({before_.string(), "old", ""}, kOld);
  }

  FakeEngine make_engine(uint64_t seed) const { return whole_.engine(*comm_, seed); }
  // The seed of the state that loading gives; 0 when it is none of those that were saved.
  uint64_t load() {
    FakeEngine engine = make_engine(3);
    load_checkpoint(engine, *comm_, directory_.string());
    for (const uint64_t seed : {kOld, kNew}) {
      if (engine.bytes() == make_engine(seed).bytes()) return seed;
    }
    return 0;
  }
  std::optional<int> save_traced(const std::function<bool(const Call&)>& keep_going) {
    FakeEngine engine = make_engine(kNew);
    const SaveOptions options = {directory_.string(), GetParam().tag, ""};
    return run_traced(
        [&] {
          if (!GetParam().beside) return save_checkpoint(engine, *comm_, options);
          AsyncSaver saver(engine, *comm_);
          saver.save(options);
          engine.fill(kLater);
          saver.wait();
        },
        keep_going);
  }
  void reset_directory() {
    fs::remove_all(directory_);
    fs::copy(before_, directory_, fs::copy_options::recursive);
  }

  static constexpr uint64_t kOld = 1;
  static constexpr uint64_t kNew = 2;
  static constexpr uint64_t kLater = 4;  // never saved
  const Sharded whole_ = on_one_rank();
  const TemporaryDirectory root_;
  const fs::path before_ = root_.path() / "before";
  const fs::path directory_ = root_.path() / "out";
  const std::shared_ptr<Communicator> comm_ = make_communicator({});
};

TEST_P(Crash, AfterAnySystemCallLeavesTheOldOrTheNewCheckpoint) {
  uint64_t last = kOld;
  int killed = 0;
  for (bool whole = false; !whole; ++killed) {
    reset_directory();
    int calls = 0;
    const auto status = save_traced([&](const Call&) { return ++calls <= killed; });
    if (!status) GTEST_SKIP() << "this system does not allow ptrace";
    last = load();
    // Not monotonic in `killed`: sanitizers make calls of their own, more of them in some runs.
    ASSERT_THAT(last, AnyOf(kOld, kNew)) << "after system call " << calls;

    FakeEngine engine = make_engine(kNew);
    save_checkpoint(engine, *comm_, {directory_.string(), "next", ""});
    const std::set<std::string> expected = {"latest", "next", "old"};
    for (const std::string& name : names_in(directory_)) {
      EXPECT_TRUE(expected.contains(name) || name == GetParam().tag) << name;
    }
    save_checkpoint(engine, *comm_, {directory_.string(), GetParam().tag, ""});
    EXPECT_EQ(names_in(directory_ / GetParam().tag).size(), 2U) << "files of the crashed save stay";
    whole = WIFEXITED(*status);
    ASSERT_TRUE(whole || WTERMSIG(*status) == SIGKILL);
  }
  EXPECT_EQ(last, kNew);
  EXPECT_GT(killed, 31);  // a save makes about 40
}

TEST_P(Crash, NothingIsRenamedBeforeItIsOnTheDisk) {
  reset_directory();
  std::set<std::string> unsynced;  // files that were written to
  int renames = 0;
  int syncs_since_rename = 0;
  const auto status = save_traced([&](const Call& call) {
    switch (call.number) {
      case SYS_pwrite64:
        unsynced.insert(call.file);
        break;
      case SYS_fsync:
        unsynced.erase(call.file);
        ++syncs_since_rename;
        break;
      case SYS_close:
        EXPECT_FALSE(unsynced.contains(call.file));
        break;
#ifdef SYS_rename
      case SYS_rename:
#endif
      case SYS_renameat:
      case SYS_renameat2:
        EXPECT_TRUE(unsynced.empty());
        ++renames;
        syncs_since_rename = 0;
        break;
      default:
        break;
    }
    return true;
  });
  if (!status) GTEST_SKIP() << "this system does not allow ptrace";
  EXPECT_GE(renames, 2);
  EXPECT_GE(syncs_since_rename, 1);
  EXPECT_EQ(load(), kNew);
}

INSTANTIATE_TEST_SUITE_P(Tags, Crash,
                         ::testing::Values(SaveCase{"new"}, SaveCase{"old"}, SaveCase{"new", true},
                                           SaveCase{"old", true}),
                         [](const auto& save) {
                           return fmt::format("{}_tag{}", save.param.tag,
                                              save.param.beside ? "_async" : "");
                         });

constexpr int64_t kSteps = 3;
constexpr int kPoints = 25;

Config nvme_config() {
  Config config = job_config(3, DType::bf16, OffloadDevice::nvme);
  config.offload.optimizer.nvme_path = "nvme";
  config.offload.param.device = OffloadDevice::nvme;
  config.offload.param.nvme_path = "nvme";
  config.offload.param.max_in_cpu = 0;
  config.offload.sub_group_size = 1500;
  config.offload.aio.block_size = 8192;
  return config;
}

// The process that is to fail does this, in its working directory: trains from the last checkpoint
// to the end, saves after each step, and writes the parameters' hash. Where there is a file "full",
// the disk is full after as many microseconds as it says.
TEST(OffloadCrashChild, DISABLED_Trains) {
  if (const int64_t delay = std::atoll(read_file("full").c_str()); delay > 0) {
    std::thread([delay] {
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
      refuse_calls({SYS_pwrite64, SYS_fallocate, SYS_ftruncate, SYS_io_uring_enter}, ENOSPC,
                   RefusedTo::all_threads);
    }).detach();
  }
  with_engine(2, nvme_config(), [](Engine& engine, Communicator& comm) {
    if (fs::exists("checkpoints/latest")) load_checkpoint(engine.states(), comm, "checkpoints");
    while (engine.states().progress().step_count < kSteps) {
      train(engine, comm, 1);
      save_checkpoint(engine.states(), comm, {.directory = "checkpoints"});
    }
    const uint64_t hash = engine.states().parameter_hash();
    if (comm.rank() == 0) std::ofstream("hash") << hash;
  });
}

// Starts the child in `folder`; kills it after `delay`, or waits for its end. 0: it trained to the
// end.
int run_child(const fs::path& folder, std::optional<std::chrono::microseconds> delay) {
  const std::string self = fs::read_symlink("/proc/self/exe");
  const std::string where = folder.string();
  const pid_t child = ::fork();
  if (child == 0) {
    if (::chdir(where.c_str()) != 0) ::raise(SIGKILL);
    // Quiet: what a killed test says is of no interest.
    if (std::freopen("/dev/null", "w", stdout) == nullptr) ::raise(SIGKILL);
    ::execl(self.c_str(), self.c_str(), "--gtest_filter=OffloadCrashChild.DISABLED_Trains",
            "--gtest_also_run_disabled_tests", nullptr);
    ::raise(SIGKILL);
  }
  if (delay) {
    std::this_thread::sleep_for(*delay);
    ::kill(child, SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

// Checkpoints are in memory, so that the test is short; offloaded states need a disk.
fs::path prepare(const TemporaryDirectory& directory) {
  const fs::path disk = fs::path(test_paths::build()) / ("nvme-" + std::to_string(::getpid()));
  fs::create_directory(disk);
  fs::create_directory_symlink(disk, directory.path() / "nvme");
  return directory.path();
}

using Fail = std::function<void(const fs::path& folder, std::chrono::microseconds delay)>;

// Whatever the moment it failed at: no file is left, and who starts again ends where it would have.
void expect_recovery(const Fail& fail) {
  const TemporaryDirectory whole;
  const auto time_of = [](const std::function<void()>& run) {
    const auto start = std::chrono::steady_clock::now();
    run();
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() -
                                                                 start);
  };
  auto duration = time_of([&] { ASSERT_EQ(run_child(prepare(whole), std::nullopt), 0); });
  const std::string expected = read_file(whole.path() / "hash");
  ASSERT_FALSE(expected.empty());
  std::mt19937_64 random(11);
  for (int point = 0; point < kPoints; ++point) {
    const TemporaryDirectory directory;
    const fs::path folder = prepare(directory);
    const std::chrono::microseconds delay(
        1 + random() % static_cast<uint64_t>(std::max<int64_t>(1, duration.count())));
    const auto took = time_of([&] { fail(folder, delay); });
    if (took < delay) duration = took;  // it was at its end; the first run had a busier machine
    EXPECT_TRUE(fs::is_empty(folder / "nvme")) << "failed after " << delay.count() << " us";
    ASSERT_EQ(run_child(folder, std::nullopt), 0) << "failed after " << delay.count() << " us";
    EXPECT_EQ(read_file(folder / "hash"), expected) << "failed after " << delay.count() << " us";
    EXPECT_TRUE(fs::is_empty(folder / "nvme"));
  }
  EXPECT_TRUE(fs::remove(fs::read_symlink(whole.path() / "nvme")));  // only when it is empty
}

TEST(OffloadCrash, KilledAnywhereItLeavesNoFileAndResumesWithTheSameWeights) {
  expect_recovery(
      [](const fs::path& folder, std::chrono::microseconds delay) { run_child(folder, delay); });
}

TEST(OffloadCrash, OnADiskThatFillsUpAnywhereItEndsAndResumesWithTheSameWeights) {
  int failures = 0;
  expect_recovery([&](const fs::path& folder, std::chrono::microseconds delay) {
    write_file(folder / "full", std::to_string(delay.count()));
    const int status = run_child(folder, std::nullopt);
    EXPECT_TRUE(WIFEXITED(status)) << "an error, and no death, after " << delay.count() << " us";
    if (status != 0) ++failures;
    fs::remove(folder / "full");
  });
  EXPECT_GT(failures, kPoints / 5);  // the others had written all before, or not begun
}

}  // namespace
}  // namespace zerorun::testing
