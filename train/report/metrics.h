#pragma once

#include <array>
#include <cstdint>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "train/report/progress.h"
#include "zero/timeline/work_meter.h"
#include "zerorun/communicator.h"
#include "zerorun/engine.h"

namespace zerorun::train {

// Returns the path of a rank's file: `path` for rank 0, files beside it for others ("m.rank1.jsonl"
// for "m.jsonl"). If `path` is a pipe or a device, only rank 0 writes, and others get "".
std::string metrics_path(const std::string& path, int rank);

// A metrics file (docs/metrics.md) with one JSON object per line: for the run, for each step, and
// for the end.
class Metrics {
 public:
  enum class Mode : uint8_t { replace, append };
  // Throws IoError if the file cannot be written.
  Metrics(const std::string& path, Mode mode);
  // Writes the first line; `run` describes the run.
  void begin(int rank, int world_size, const nlohmann::ordered_json& run);
  // Writes the line of a step; `more` has further figures of this rank, or is null.
  void write(const StepReport& report, const nlohmann::ordered_json& more);
  void finish(uint64_t param_hash);

 private:
  void write_line(const std::string& line);

  std::string path_;
  std::ofstream file_;
};

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
