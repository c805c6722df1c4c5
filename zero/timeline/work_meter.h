#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "zerorun/communicator.h"
#include "zerorun/engine.h"
#include "zerorun/work_span.h"

namespace zerorun {

// Seconds of one kind of work on all streams; overlapping work counts once. Exposed: the program
// waited meanwhile or was in the engine's step. Hidden: all other time.
struct SplitSeconds {
  double exposed = 0;
  double hidden = 0;

  bool any() const { return exposed + hidden > 0; }
};

// The work of a step. A value is unset if it is unknown, because the work ran on a GPU's stream or
// had too many parts to record.
struct StepWork {
  std::optional<SplitSeconds> reductions;
  std::optional<SplitSeconds> gathers;
  std::optional<SplitSeconds> offload;  // updates on the host, copies from and to it, disk
};

// Measures the work on an engine's streams, from the construction of the meter on.
class WorkMeter {
 public:
  WorkMeter(Engine& engine, Communicator& comm);

  // The work since the last call.
  StepWork take();
  // Seconds of all collectives so far, by operation; NaN if one ran on a GPU's stream.
  std::array<double, kCollectives> collective_seconds() const;

 private:
  struct Log;
  std::shared_ptr<Log> log_;
  std::vector<Subscription> subscriptions_;
};

}  // namespace zerorun
