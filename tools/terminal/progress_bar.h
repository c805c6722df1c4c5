#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace zerorun {

// A line on a terminal that says how much of some work is done, once that takes two seconds; on
// anything but a terminal, nothing.
class ProgressBar {
 public:
  // `total`: bytes. `after`: how long to wait with it.
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
  std::chrono::steady_clock::time_point next_;  // when it is drawn
  bool is_drawn_ = false;
};

}  // namespace zerorun
