// How the host waits for the norm of a step, in virtual time.

#include "device/soon.h"
#include "tests/common.h"
#include "tests/harness.h"
#include "tests/zero/virtual_clock.h"
#include "zerorun/engine.h"

namespace zerorun::norm_wait {
namespace {

using testing::run_ranks;
using testing::VirtualClock;
using testing::VirtualEvent;
using testing::VirtualKind;
using testing::VirtualTimeDevice;

// How often the host sleeps in a step whose norm comes some seconds after the host asks for it. To
// look whether it has come takes `look` seconds.
int sleeps_of_a_step(double look) {
  int sleeps = 0;
  run_ranks(1, [&](Communicator& comm) {
    VirtualClock clock;
    VirtualTimeDevice device(clock, {.download_per_byte = 0.01}, VirtualKind::accelerator);
    Config config;
    config.batch.accumulation_steps = 1;
    config.zero.stage = 2;
    const auto engine =
        Engine::create(config, device, comm, {{"w", {64}, "m", 0, true, ""}}, {ParameterGroup{}});
    engine->initialize_parameters([](ParameterId, int64_t, std::span<float> out) {
      std::fill(out.begin(), out.end(), 0.5F);
    });
    device.fill(device.inline_stream(), engine->gradient(0).view, 0.01F);
    engine->grad_ready(0);
    engine->end_micro_step();
    clock.caller += 1e6;  // everything before is over
    clock.look = look;
    clock.slept = 0;
    // On this device's inline stream an update that is ahead of the norm would wait for it, too.
    EXPECT_TRUE(engine->step([](std::span<const StateInterval>) {}).applied);
    sleeps = clock.slept;
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
