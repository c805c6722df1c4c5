#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "core/wait_clock.h"
#include "zerorun/straggler.h"

namespace zerorun {

// Divides the time of the thread that calls an engine among the parts of a step and its waits.
class PartClock {
 public:
  struct Reading {
    int64_t now_ns = 0;
    WaitTimes waited;
  };
  using Read = std::function<Reading()>;

  explicit PartClock(Read read = read_this_thread)
      : read_(std::move(read)), started_(read_()), last_(started_) {}

  // Time from now on is of this part, until the next call. Returns the part of the time before.
  StepPart enter(StepPart part);
  // The shares of the time since the last call.
  StepShares take();
  // Nanoseconds between the last two calls of take().
  int64_t step_ns() const { return step_ns_; }

  static Reading read_this_thread() { return {steady_ns(), WaitClock::of_this_thread().read()}; }

 private:
  // Adds the time since the last reading to its part.
  void advance();

  const Read read_;
  Reading started_;  // the step
  Reading last_;
  StepPart part_ = StepPart::compute;
  std::array<int64_t, kStepParts> parts_ns_{};
  int64_t waited_ns_ = 0;
  int64_t step_ns_ = 0;
};

// A rank's shares as one word, with 12 bits for each: what the ranks exchange.
int64_t encode_shares(const StepShares& shares);
StepShares decode_shares(int64_t word);

}  // namespace zerorun
