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
  expect_end(kGoesOn, [] { const StopSignal stop; });
}

// The kernel then forgets who has sent a signal.
TEST(StopSignalTest, EndsWithoutRoomForQueuedSignals) {
  expect_end(kGoesOn, [] {
    const rlimit none{};
    ::setrlimit(RLIMIT_SIGPENDING, &none);
    const StopSignal stop;
  });
}

TEST(StopSignalTest, RemembersTheLastOneWhileHeld) {
  expect_end(kGoesOn, [] {
    StopSignal stop;
    stop.hold();
    if (stop.received() != 0) ::_exit(1);
    for (const int signal : {SIGTERM, SIGINT}) {
      ::kill(::getpid(), signal);
      wait_for(stop, signal);
    }
    ::_exit(0);
  });
}

TEST(StopSignalTest, WhatWasHeldTakesEffectAtTheRelease) {
  expect_end(::testing::KilledBySignal(SIGINT), [] {
    StopSignal stop;
    stop.hold();
    ::kill(::getpid(), SIGINT);
    wait_for(stop, SIGINT);
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

TEST(SaveSchedule, SavesAtEachMultipleWhenTheDiskKeepsUp) {
  SaveSchedule schedule(3, 0);
  EXPECT_THAT(saved_steps(schedule, 10, 2), ElementsAre(3, 6, 9));
  EXPECT_EQ(schedule.due(), 3);
  EXPECT_EQ(schedule.put_off(), 0);
  EXPECT_EQ(schedule.last_step(), 9);
}

TEST(SaveSchedule, APutOffSaveComesWithTheFirstFreeStepAndStandsForThoseMeanwhile) {
  SaveSchedule every_step(1, 0);
  EXPECT_THAT(saved_steps(every_step, 10, 3), ElementsAre(1, 5, 9));
  EXPECT_EQ(every_step.due(), 10);
  EXPECT_EQ(every_step.put_off(), 7);

  SaveSchedule seldom(4, 0);  // 8 falls due while 4 is written, until after 9
  EXPECT_THAT(saved_steps(seldom, 15, 5), ElementsAre(4, 10));
  EXPECT_EQ(seldom.put_off(), 2);  // and 12
}

TEST(SaveSchedule, WhatIsKeptIsSavedAtItsOwnStep) {
  SaveSchedule schedule(2, 4);
  EXPECT_THAT(saved_steps(schedule, 12, 100), ElementsAre(2, 4, 8, 12));
  EXPECT_EQ(schedule.put_off(), 2);
  SaveSchedule not_due(3, 4);  // keep_every saves nothing by itself
  EXPECT_THAT(saved_steps(not_due, 12, 0), ElementsAre(3, 6, 9, 12));
}

TEST(SaveSchedule, NothingIsEverDueWithoutAnInterval) {
  SaveSchedule schedule(0, 2);
  EXPECT_THAT(saved_steps(schedule, 5, 0), ElementsAre());
  EXPECT_EQ(schedule.last_step(), -1);
}

}  // namespace
}  // namespace zerorun::train
