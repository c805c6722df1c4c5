#include "launcher/ranks/cuda_probe.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "core/check.h"
#include "device/cuda_backend.h"
#include "launcher/ranks/process.h"
#include "launcher/ranks/signals.h"
#include "os/uninterrupted.h"

namespace zerorun {

namespace {

constexpr int kDriverFails = 2;  // exit status of the child

[[noreturn]] void answer(int out) noexcept {
  const std::string problem = why_no_cuda();
  const auto nbytes = static_cast<ssize_t>(problem.size());
  if (write(out, problem.data(), problem.size()) != nbytes) _exit(1);
  _exit(why_driver_fails().empty() ? 0 : kDriverFails);
}

using std::chrono::steady_clock;

// Reads until the child closes its end; false if it has not at `end`.
bool read_answer(int in, steady_clock::time_point end, std::string& text) {
  std::array<char, 4096> block;
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd ready = {in, POLLIN, 0};
    if (poll(&ready, 1, static_cast<int>(left.count())) <= 0) continue;
    const ssize_t count = read(in, block.data(), block.size());
    if (count == 0) return true;
    if (count > 0) text.append(block.data(), static_cast<size_t>(count));
    if (count < 0 && errno != EINTR) return true;
  }
}

// False if the child has not ended at `end`: it may wait within the driver as it exits.
bool reap(pid_t child, steady_clock::time_point end, int& status) {
  while (uninterrupted([&] { return waitpid(child, &status, WNOHANG); }) == 0) {
    if (steady_clock::now() >= end) return false;
    usleep(1000);
  }
  return true;
}

}  // namespace

CudaProblem ask_for_cuda_problem(std::chrono::seconds patience) {
  Pipe pipe = make_pipe();
  const pid_t child = fork();
  if (child < 0) fail<IoError>("cannot start a process: {}", std::strerror(errno));
  if (child == 0) answer(pipe.write.get());
  pipe.write.close();
  CudaProblem problem;
  int status = 0;
  const auto end = steady_clock::now() + patience;
  if (!read_answer(pipe.read.get(), end, problem.text) || !reap(child, end, status)) {
    // One that waits within the driver may stay until that answers, even when it is killed.
    kill(child, SIGKILL);
    reap(child, steady_clock::now() + std::chrono::seconds(1), status);
    return {fmt::format("CUDA: NVIDIA's driver has not said within {} s whether a GPU can be used "
                        "(does nvidia-smi answer? ZERORUN_DRIVER_TIMEOUT=600 waits longer)",
                        patience.count()),
            true};
  }
  problem.driver_fails = WIFSIGNALED(status) || WEXITSTATUS(status) == kDriverFails;
  if (WIFSIGNALED(status)) {
    problem.text = fmt::format("CUDA: a process that looked for GPUs was killed by {}",
                               signal_name(WTERMSIG(status)));
  }
  return problem;
}

}  // namespace zerorun
