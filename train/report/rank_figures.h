#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>

#include "zero/timeline/work_meter.h"
#include "zerorun/communicator.h"
#include "zerorun/engine.h"

namespace zerorun::train {

// Collects the figures of a rank's engine (times, bytes, memory) for the lines of its metrics file.
class RankFigures {
 public:
  // Starts counting. Engine and communicator must outlive this object.
  RankFigures(Engine& engine, Communicator& comm);

  // Returns the figures of the step that has just ended.
  nlohmann::ordered_json take();

 private:
  nlohmann::ordered_json take_collectives();

  Engine& engine_;
  Communicator& comm_;
  WorkMeter work_;
  CommStats counted_;  // up to the step before, like the next
  std::array<double, kCollectives> seconds_{};
};

}  // namespace zerorun::train
