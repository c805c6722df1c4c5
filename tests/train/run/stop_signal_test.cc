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

}  // namespace
}  // namespace zerorun::train
