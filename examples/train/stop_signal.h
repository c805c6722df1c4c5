#pragma once

#include <csignal>

namespace zerorun::train {

// While it lives, SIGINT and SIGTERM do not end the process but are remembered. One at a time.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // The signal that arrived, or 0.
  int received() const;

 private:
  struct sigaction previous_interrupt_ = {};
  struct sigaction previous_terminate_ = {};
};

}  // namespace zerorun::train
