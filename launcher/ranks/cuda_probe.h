#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace zerorun {

// What a child process said. Questions that may crash or hang are asked there: this process
// survives the answer, and does not initialise the driver before it forks.
struct ChildAnswer {
  std::string text{};
  int status = 0;       // as of waitpid
  bool in_time = true;  // false: it did not end within the patience, and was killed
};
// `answer` runs in the child, writes its text to the descriptor and returns the exit status.
ChildAnswer ask_child(const std::function<int(int out)>& answer, std::chrono::seconds patience);

// How long NVIDIA's driver may take to say something: ZERORUN_DRIVER_TIMEOUT, or 120 s.
std::chrono::seconds driver_patience();

// Why CUDA cannot be used; empty if it can.
struct CudaProblem {
  std::string text{};
  bool driver_fails = false;  // it is there, and no GPU of it can be used
};
CudaProblem ask_for_cuda_problem(std::chrono::seconds patience);

// Lines about CUDA, its libraries and NCCL, or that the driver does not answer.
std::vector<std::string> ask_about_cuda(std::chrono::seconds patience);

}  // namespace zerorun
