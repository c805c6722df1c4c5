#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace zerorun {

// A line on a terminal that says how much of some work is done; on anything else, nothing.
class ProgressBar {
 public:
  // On standard error. `total`: bytes.
  ProgressBar(std::string what, uint64_t total);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void add(uint64_t nbytes);

 private:
  const std::string what_;
  const uint64_t total_;
  const bool is_shown_;
  uint64_t done_ = 0;
  std::chrono::steady_clock::time_point shown_{};
};

}  // namespace zerorun
