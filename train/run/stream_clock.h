#pragma once

#include <chrono>
#include <memory>

#include "device/cpu/cpu_stream.h"
#include "zerorun/device.h"

namespace zerorun::train {

// Tells when the device's inline stream reached a point. A thread waits for it if the device works
// asynchronously, so that the caller need not.
class StreamClock {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit StreamClock(Device& device);

  // The point is after all work that was submitted so far.
  void mark();
  // The time of the last mark(). Waits for it.
  Time read();

 private:
  Device& device_;
  Time time_{};
  // Null on the CPU, whose inline stream is the caller. Last: its thread writes the time.
  const std::unique_ptr<CpuStream> thread_;
};

}  // namespace zerorun::train
