#include <sys/ptrace.h>
#include <sys/syscall.h>

#include "tests/checkpoint/fake_engine.h"
#include "tests/checkpoint/temporary_directory.h"
#include "tests/common.h"
#include "zerorun/checkpoint.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

namespace fs = std::filesystem;
using testing::FakeEngine;
using testing::names_in;

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

// Runs `body` in another process and calls `keep_going` after each system call of its threads,
// while that thread stands still. Kills it (as kill -9 does) when that returns false. Returns how
// it ended, as waitpid() says, or nothing when this system does not allow tracing.
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
class Crash : public ::testing::TestWithParam<SaveCase> {
 protected:
  Crash() {
    fs::create_directory(before_);
    FakeEngine engine = make_engine(kOld);
    save_checkpoint(engine, *comm_, {before_.string(), "old", ""});
  }

  FakeEngine make_engine(uint64_t seed) const {
    const testing::FakeModel model = testing::small_model();
    return {model, testing::random_cuts(model, 1, 1)[0], seed};
  }
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
  const testing::TemporaryDirectory root_;
  const fs::path before_ = root_.path() / "before";
  const fs::path directory_ = root_.path() / "out";
  const std::shared_ptr<Communicator> comm_ = make_communicator({});
};

TEST_P(Crash, AfterAnySystemCallLeavesTheOldOrTheNewCheckpoint) {
  uint64_t last = kOld;
  int killed = 0;
  while (true) {
    reset_directory();
    int calls = 0;
    const auto status = save_traced([&](const Call&) { return ++calls <= killed; });
    if (!status) GTEST_SKIP() << "this system does not allow ptrace";
    const uint64_t loaded = load();
    // Not monotonic in `killed`: sanitizers make calls of their own, more of them in some runs.
    ASSERT_THAT(loaded, AnyOf(kOld, kNew)) << "after system call " << calls;
    last = loaded;

    FakeEngine engine = make_engine(kNew);
    save_checkpoint(engine, *comm_, {directory_.string(), "next", ""});
    const std::set<std::string> expected = {"latest", "next", "old"};
    for (const std::string& name : names_in(directory_)) {
      EXPECT_TRUE(expected.contains(name) || name == GetParam().tag) << name;
    }
    save_checkpoint(engine, *comm_, {directory_.string(), GetParam().tag, ""});
    EXPECT_EQ(names_in(directory_ / GetParam().tag).size(), 2U) << "files of the crashed save stay";
    if (WIFEXITED(*status)) break;
    ASSERT_EQ(WTERMSIG(*status), SIGKILL);
    ++killed;
  }
  EXPECT_EQ(last, kNew);
  EXPECT_GT(killed, 30);  // a save makes about 40
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

}  // namespace
}  // namespace zerorun
