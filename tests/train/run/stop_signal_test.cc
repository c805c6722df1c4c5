#include <sys/resource.h>

#include "tests/common.h"
#include "train/cpu/matrix.h"
#include "train/run/run.h"

namespace zerorun::train {
namespace {

// Each test is a process of its own: signals are sent to processes, and the other tests have left
// threads that do not block them.
class StopSignalTest : public ::testing::Test {
 protected:
  StopSignalTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

void wait_for(const StopSignal& stop, int signal) {
  while (stop.received() != signal) ::usleep(100);
}

TEST_F(StopSignalTest, EndsTheProcessUnlessHeld) {
  EXPECT_EXIT(
      {
        const StopSignal stop;
        ::kill(::getpid(), SIGTERM);
        ::pause();
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

TEST_F(StopSignalTest, EndsWithoutASignal) {
  EXPECT_EXIT(
      {
        { const StopSignal stop; }
        ::_exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

// The kernel then forgets who has sent a signal.
TEST_F(StopSignalTest, EndsWithoutRoomForQueuedSignals) {
  EXPECT_EXIT(
      {
        const rlimit none{};
        ::setrlimit(RLIMIT_SIGPENDING, &none);
        { const StopSignal stop; }
        ::_exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(StopSignalTest, RemembersTheLastOneWhileHeld) {
  EXPECT_EXIT(
      {
        StopSignal stop;
        stop.hold();
        if (stop.received() != 0) ::_exit(1);
        ::kill(::getpid(), SIGTERM);
        wait_for(stop, SIGTERM);
        ::kill(::getpid(), SIGINT);
        wait_for(stop, SIGINT);
        ::_exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(StopSignalTest, WhatWasHeldTakesEffectAtTheRelease) {
  EXPECT_EXIT(
      {
        StopSignal stop;
        stop.hold();
        ::kill(::getpid(), SIGINT);
        wait_for(stop, SIGINT);
        stop.release();
        ::_exit(0);
      },
      ::testing::KilledBySignal(SIGINT), "");
}

// More inner elements than oneDNN's kernels keep on the stack.
void multiply() {
  constexpr int64_t kSize = 512;
  const std::vector<float> in(kSize * kSize, 1.0F);
  std::vector<float> out(kSize * kSize);
  gemm({kSize, kSize, kSize}, {in.data(), kSize}, {in.data(), kSize}, {out.data(), kSize});
}

TEST_F(StopSignalTest, LeavesTheHeapAloneDuringMatrixProducts) {
  EXPECT_EXIT(
      {
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
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace zerorun::train
