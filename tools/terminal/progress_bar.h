#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace zerorun {

// Shows the progress of some work in a line on a terminal once the work has taken two seconds.
// Prints nothing if `file` is not a terminal.
class ProgressBar {
 public:
  // `total` is the work in bytes; `after` is the time before the line is shown.
  ProgressBar(std::string what, uint64_t total, std::FILE* file = stderr,
              std::chrono::milliseconds after = std::chrono::seconds(2));
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void add(uint64_t nbytes);

 private:
  const std::string what_;
  const uint64_t total_;
  std::FILE* const file_;
  const bool is_terminal_;
  uint64_t done_ = 0;
  std::chrono::steady_clock::time_point next_;  // time of the next update
  bool is_drawn_ = false;
};

}  // namespace zerorun
