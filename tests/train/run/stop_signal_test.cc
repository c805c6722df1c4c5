#include <sys/resource.h>

#include "tests/common.h"
#include "train/cpu/matrix.h"
#include "train/run/run.h"

namespace zerorun::train {
namespace {

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
    for (const int signal : {SIGTERM, SIGINT}) {
      ::kill(::getpid(), signal);
      wait_for(stop, signal);
    }
    stop.release();
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
}  // namespace zerorun::train
