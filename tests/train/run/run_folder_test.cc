#include <sys/resource.h>

#include "tests/train/token_file.h"
#include "train/cpu/matrix.h"
#include "train/run/run.h"

namespace zerorun::train::testing {
namespace {

namespace fs = std::filesystem;

struct RunFolderTest : ::testing::Test {
  TrainOptions options(const std::string& save = "run") const {
    TrainOptions options;
    options.save = folder_.path(save);
    return options;
  }
  // Leaves what a run of the job leaves.
  void make_run(const std::string& name, const std::string& job = "job") const {
    const RunFolder claimed(options(name), job);
    folder_.write(name + "/latest", "step1\n");
    folder_.write(name + "/model.safetensors", "weights");
  }
  std::string error_of(const TrainOptions& asked) const {
    return zerorun::testing::error_of([&] { const RunFolder claimed(asked, ""); });
  }

  const Scratch folder_;
};

TEST_F(RunFolderTest, IsMadeAndHeldByOneRun) {
  const auto first = std::make_unique<RunFolder>(options("deep/run"), "");
  EXPECT_EQ(first->moved_to(), "");
  EXPECT_THAT(error_of(options("deep/run")),
              HasAll("another run saves there, process ", "another --save"));
}

TEST_F(RunFolderTest, AnotherRunIsKeptUnderANewNameAndTheResumedOneInPlace) {
  make_run("run");
  {
    const RunFolder claimed(options(), "");
    EXPECT_EQ(claimed.moved_to(), fs::canonical(folder_.path()).string() + "/run.1");
    EXPECT_EQ(folder_.read("run.1/latest"), "step1\n");
    EXPECT_FALSE(fs::exists(folder_.path("run/latest")));
    EXPECT_THAT(error_of(options()), HasSubstr("another run saves there"));
  }
  folder_.write("run/latest", "step2\n");
  TrainOptions resumed = options();
  resumed.resume = folder_.path("run/.");
  const RunFolder claimed(resumed, "");
  EXPECT_EQ(claimed.moved_to(), "");
  EXPECT_THAT(error_of(options()), HasSubstr("another run saves there"));  // and is not moved away
  EXPECT_EQ(folder_.read("run/latest"), "step2\n");
}

TEST_F(RunFolderTest, AModelThatIsNotOfARunIsLeftAlone) {
  folder_.write("run/pytorch_model.bin", "foreign");
  EXPECT_THAT(error_of(options()),
              HasAll("contains pytorch_model.bin, which no run", "give another --save"));
  EXPECT_EQ(folder_.read("run/pytorch_model.bin"), "foreign");
}

TEST_F(RunFolderTest, TheStartingPointCannotBeOverwritten) {
  make_run("run");
  TrainOptions asked = options();
  asked.init = asked.save;
  EXPECT_THAT(error_of(asked), HasSubstr("--init " + asked.save + " lies in --save"));
  asked = options();
  asked.resume = folder_.path("run/step1");
  folder_.write("run/step1/checkpoint.json", "");
  EXPECT_THAT(error_of(asked), HasSubstr("lies in --save"));
  EXPECT_EQ(folder_.read("run/model.safetensors"), "weights");
}

TEST_F(RunFolderTest, ALinkStaysAndItsFolderIsKept) {
  make_run("disk/run");
  fs::create_symlink(folder_.path("disk/run"), folder_.path("link"));
  const RunFolder claimed(options("link"), "");
  EXPECT_TRUE(fs::is_symlink(folder_.path("link")));
  EXPECT_EQ(folder_.read("disk/run.1/latest"), "step1\n");
  EXPECT_FALSE(fs::exists(folder_.path("link/latest")));
  fs::create_symlink(folder_.path("gone"), folder_.path("other"));
  EXPECT_THAT(error_of(options("other")), HasSubstr("a link to " + folder_.path("gone")));
  EXPECT_FALSE(fs::exists(folder_.path("gone")));
}

TEST_F(RunFolderTest, AFolderThatCannotBeRenamedIsAnErrorBeforeTheRun) {
  make_run("run");
  const fs::path before = fs::current_path();
  fs::current_path(folder_.path("run"));
  TrainOptions asked = options();
  asked.save = ".";
  EXPECT_THAT(
      error_of(asked),
      HasAll("--save .: the folder contains another run and the working folder", "--resume"));
  fs::current_path(before);
  EXPECT_EQ(folder_.read("run/latest"), "step1\n");
}

TEST_F(RunFolderTest, AFileInItsPlaceAndADiskWithoutRoomAreErrors) {
  folder_.write("file", "mine");
  for (const char* save : {"file", "file/deeper"}) {
    EXPECT_THAT(error_of(options(save)), HasSubstr("Not a directory"));
  }
  const RunFolder claimed(options(), "");
  claimed.check_room(1);
  EXPECT_ERROR_OF(IoError, claimed.check_room(uint64_t{1} << 62),
                  "a checkpoint and the model take");
}

TEST_F(RunFolderTest, OnlyARestartContinuesAndOnlyItsOwnJob) {
  make_run("run", "job-a");
  const auto continues = [&](const char* count, const char* job) {
    ::setenv("TORCHELASTIC_RESTART_COUNT", count, 1);
    const bool result = continues_after_restart(options(), job);
    ::unsetenv("TORCHELASTIC_RESTART_COUNT");
    return result;
  };
  EXPECT_TRUE(continues("1", "job-a"));
  EXPECT_FALSE(continues("0", "job-a"));
  EXPECT_FALSE(continues("1", "job-b"));
  EXPECT_FALSE(continues("1", ""));
  EXPECT_FALSE(continues_after_restart(options(), "job-a"));
  fs::remove(folder_.path("run/latest"));
  EXPECT_FALSE(continues("1", "job-a"));  // it had saved nothing yet
}

// Runs `body` in a process of its own: signals are sent to processes, and the other tests have left
// threads that do not block them.
void expect_end(const auto& how, const auto& body) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        body();
        ::_exit(0);
      },
      how, "");
}

const ::testing::ExitedWithCode kGoesOn(0);

void wait_for(const StopSignal& stop, int signal) {
  while (stop.received() != signal) ::usleep(100);
}

TEST(StopSignalTest, EndsTheProcessUnlessHeld) {
  expect_end(::testing::KilledBySignal(SIGTERM), [] {
    const StopSignal stop;
    ::kill(::getpid(), SIGTERM);
    ::pause();
  });
}

TEST(StopSignalTest, EndsWithoutASignal) {
  for (const bool has_room : {true, false}) {  // else the kernel forgets who has sent a signal
    expect_end(kGoesOn, [&] {
      const rlimit none{};
      if (!has_room) ::setrlimit(RLIMIT_SIGPENDING, &none);
      const StopSignal stop;
    });
  }
}

TEST(StopSignalTest, TheLastOneOfThoseThatWereHeldTakesEffectAtTheRelease) {
  expect_end(::testing::KilledBySignal(SIGINT), [] {
    StopSignal stop;
    stop.hold();
    if (stop.received() != 0) ::_exit(1);
    for (const int signal : {SIGTERM, SIGHUP, SIGINT}) {
      ::kill(::getpid(), signal);
      wait_for(stop, signal);
    }
    stop.release();
  });
}

TEST(StopSignalTest, LeavesAHangupIgnored) {
  expect_end(kGoesOn, [] {
    std::signal(SIGHUP, SIG_IGN);
    const StopSignal stop;
    ::kill(::getpid(), SIGHUP);
    const timespec now{};
    sigset_t hangup;
    sigemptyset(&hangup);
    sigaddset(&hangup, SIGHUP);
    ::_exit(sigtimedwait(&hangup, nullptr, &now) < 0 ? 0 : 1);  // not pending: nobody waits for it
  });
}

// More inner elements than oneDNN's kernels keep on the stack.
void multiply() {
  constexpr int64_t kSize = 512;
  const std::vector<float> in(kSize * kSize, 1.0F);
  std::vector<float> out(kSize * kSize);
  gemm({kSize, kSize, kSize}, {in.data(), kSize}, {in.data(), kSize}, {out.data(), kSize});
}

TEST(StopSignalTest, LeavesTheHeapAloneDuringMatrixProducts) {
  expect_end(kGoesOn, [] {
    StopSignal stop;
    stop.hold();
    std::atomic<bool> done = false;
    std::thread sender([&] {
      while (!done) ::kill(::getpid(), SIGINT);
    });
    for (int i = 0; i < 50; ++i) multiply();
    done = true;
    sender.join();
    ::_exit(0);
  });
}

// The steps that are saved when a save that begins after step `s` is written for `busy` more steps.
std::vector<int64_t> saved_steps(SaveSchedule& schedule, int64_t steps, int64_t busy) {
  std::vector<int64_t> saved;
  for (int64_t step = 1; step <= steps; ++step) {
    const bool is_free = saved.empty() || step > saved.back() + busy;
    if (!schedule.is_time(step, is_free)) continue;
    schedule.saved(step);
    saved.push_back(step);
  }
  return saved;
}

TEST(SaveSchedule, APutOffSaveComesWithTheFirstFreeStepAndStandsForThoseMeanwhile) {
  struct Case {
    int64_t every, keep_every, steps, busy;
    std::vector<int64_t> saved;
    int64_t due, put_off;
  };
  for (const Case& one : {
           Case{3, 0, 10, 2, {3, 6, 9}, 3, 0},
           Case{1, 0, 10, 3, {1, 5, 9}, 10, 7},
           Case{4, 0, 15, 5, {4, 10}, 3, 2},          // 8 is due while 4 is written; and 12
           Case{2, 4, 12, 100, {2, 4, 8, 12}, 6, 2},  // what is kept is saved at its own step
           Case{3, 4, 12, 0, {3, 6, 9, 12}, 4, 0},    // keep_every saves nothing by itself
           Case{0, 2, 5, 0, {}, 0, 0},
       }) {
    SaveSchedule schedule(one.every, one.keep_every);
    EXPECT_EQ(saved_steps(schedule, one.steps, one.busy), one.saved);
    EXPECT_EQ(schedule.due(), one.due) << one.every;
    EXPECT_EQ(schedule.put_off(), one.put_off) << one.every;
    EXPECT_EQ(schedule.last_step(), one.saved.empty() ? -1 : one.saved.back());
  }
}

}  // namespace
}  // namespace zerorun::train::testing
