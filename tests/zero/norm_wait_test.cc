// How the host waits for the norm of a step, in virtual time.

#include "tests/zero/virtual_model.h"
#include "zero/gradients/gradient_norm.h"

namespace zerorun::norm_wait {
namespace {

using testing::VirtualClock;
using testing::VirtualEvent;

// How often the host sleeps in a step whose norm comes some seconds after the host asks for it. To
// look whether it has come takes `look` seconds.
int sleeps_of_a_step(double look) {
  int sleeps = 0;
  const testing::VirtualJob job{
      .config = testing::virtual_config(2), .modules = 1, .costs = {.download_per_byte = 0.01}};
  run_virtually(job, [&](const testing::VirtualModel& model) {
    model.backward(0, 0.0);
    model.engine.end_micro_step();
    model.settle();
    model.clock.look = look;
    model.clock.slept = 0;
    // On this device's inline stream an update that is ahead of the norm would wait for it, too.
    EXPECT_TRUE(model.engine.step([](std::span<const StateInterval>) {}).applied);
    sleeps = model.clock.slept;
  });
  return sleeps;
}

TEST(NormWait, TheHostLooksForANormThatComesSoonAndSleepsForOthers) {
  // One look finds it, so the time that the thread is given does not matter.
  EXPECT_EQ(sleeps_of_a_step(1e6), 0);
  EXPECT_EQ(sleeps_of_a_step(0.0), 1);  // virtually, the time for which the host looks is none
}

TEST(NormWait, AnEventThatHasHappenedIsLookedAtOnce) {
  VirtualClock clock{.look = 0.25};
  synchronize_soon(Event(std::make_shared<VirtualEvent>(clock, 0.0)), std::chrono::seconds(10));
  EXPECT_EQ(clock.caller, 0.25);
  synchronize_soon(Event(), std::chrono::seconds(10));
}

}  // namespace
}  // namespace zerorun::norm_wait
