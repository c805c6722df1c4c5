#pragma once

#include <chrono>
#include <string>

namespace zerorun {

// Why CUDA cannot be used; empty if it can.
struct CudaProblem {
  std::string text{};
  bool driver_fails = false;  // it is there, and no GPU of it can be used
};

// A child process looks, so that the launcher does not initialise the driver before it forks, and
// survives a driver that crashes or takes longer than `patience`.
CudaProblem ask_for_cuda_problem(std::chrono::seconds patience);

}  // namespace zerorun
