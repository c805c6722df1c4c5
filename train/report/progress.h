#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "train/report/step_report.h"

namespace zerorun::train {

struct ProgressOptions {
  int64_t first_step = 0;  // number of steps before this run
  int64_t last_step = 0;
  std::optional<int64_t> steps_per_print;  // unset: about twenty lines, or one every ten seconds
  bool breakdown = false;                  // show where the time goes
  bool terminal = false;                   // rewrite one line instead of adding lines
};

// Returns the text of a progress line: step, loss, tokens per second, memory, remaining time.
std::string progress_line(const StepReport& report, const ProgressOptions& options,
                          double seconds_left);

// Writes progress lines and lines about events to a stream of rank 0.
class Progress {
 public:
  Progress(std::FILE* stream, const ProgressOptions& options);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void report(const StepReport& report);
  void event(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;
  bool is_due(int64_t step) const;
  void end_line();

  std::FILE* stream_;
  ProgressOptions options_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point shown_{};
  bool line_is_open_ = false;
};

}  // namespace zerorun::train
