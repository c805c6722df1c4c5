#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "train/report/step_report.h"

namespace zerorun::train {

// The file of a rank: rank 0's is `path`, others' lie beside it ("m.rank1.jsonl" for "m.jsonl").
// Empty where `path` is a pipe or a device, which takes rank 0's alone.
std::string metrics_path(const std::string& path, int rank);

// A file of one JSON object a line: one for the run, one for each step, and a last one.
class Metrics {
 public:
  enum class Mode : uint8_t { replace, append };
  // Throws IoError when the file cannot be written.
  Metrics(const std::string& path, Mode mode);
  // `run`: what is said of it.
  void begin(int rank, int world_size, const nlohmann::ordered_json& run);
  // `more`: figures of this rank, or null.
  void write(const StepReport& report, const nlohmann::ordered_json& more);
  void finish(uint64_t param_hash);

 private:
  void write_line(const std::string& line);

  std::string path_;
  std::ofstream file_;
};

}  // namespace zerorun::train
