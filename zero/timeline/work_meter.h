#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "zerorun/communicator.h"
#include "zerorun/engine.h"
#include "zerorun/work_span.h"

namespace zerorun {

// Seconds that one kind of work took on whichever streams, overlaps once: those in which the
// program waited or was in the engine's step, and the others.
struct SplitSeconds {
  double exposed = 0;
  double hidden = 0;

  bool any() const { return exposed + hidden > 0; }
};

// Unset: not known, as it ran on a GPU's stream, or was in too many pieces to keep.
struct StepWork {
  std::optional<SplitSeconds> reductions;
  std::optional<SplitSeconds> gathers;
  std::optional<SplitSeconds> offload;  // updates on the host, copies from and to it, disk
};

// Counts what the streams of an engine do beside its program, from the meter's construction on.
class WorkMeter {
 public:
  WorkMeter(Engine& engine, Communicator& comm);

  // Since the last call.
  StepWork take();
  // Seconds of the collectives so far, by operation; not a number where a GPU's stream ran one.
  std::array<double, kCollectives> collective_seconds() const;

 private:
  struct Log;
  std::shared_ptr<Log> log_;
  std::vector<Subscription> subscriptions_;
};

}  // namespace zerorun
