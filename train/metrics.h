#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include "train/step_report.h"

namespace zerorun::train {

// A file of one JSON object a line: one for each step, and a last one for the run.
class Metrics {
 public:
  enum class Mode : uint8_t { replace, append };
  // Throws IoError when the file cannot be written.
  Metrics(const std::string& path, Mode mode);
  void write(const StepReport& report);
  void finish(uint64_t param_hash);

 private:
  void write_line(const std::string& line);

  std::string path_;
  std::ofstream file_;
};

}  // namespace zerorun::train
