#pragma once

#include <string_view>
#include <utility>

#include "core/observers.h"
#include "zerorun/engine.h"
#include "zerorun/work_span.h"

namespace zerorun {

// The seconds that the engine's caller has spent in one kind of the engine's work.
struct Timer {
  std::string_view name;
  Observers<WorkSpan>& observers;  // informed of each run of the timer
  double seconds = 0.0;
};

// The timers from which EngineTimings are made.
struct Timers {
  Observers<WorkSpan> observers;
  Timer reduce_s{"wait for reductions", observers};
  Timer gather_s{"wait for gathers", observers};
  Timer optimizer_s{"optimizer", observers};

  EngineTimings take() {
    return {std::exchange(reduce_s.seconds, 0.0), std::exchange(gather_s.seconds, 0.0),
            std::exchange(optimizer_s.seconds, 0.0)};
  }
};

// Adds the time from its construction to its destruction to a timer.
class Stopwatch {
 public:
  explicit Stopwatch(Timer& timer) : timer_(timer) {}
  ~Stopwatch() {
    const double end = steady_seconds();
    timer_.seconds += end - begin_;
    if (!timer_.observers.any()) return;
    timer_.observers.notify({kProgramStream, timer_.name, 0, begin_, end});
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  Timer& timer_;
  const double begin_ = steady_seconds();
};

}  // namespace zerorun
