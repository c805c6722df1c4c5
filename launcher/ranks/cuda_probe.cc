#include "launcher/ranks/cuda_probe.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
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

}  // namespace

CudaProblem ask_for_cuda_problem() {
  Pipe pipe = make_pipe();
  const pid_t child = fork();
  if (child < 0) fail<IoError>("cannot start a process: {}", std::strerror(errno));
  if (child == 0) answer(pipe.write.get());
  pipe.write.close();
  CudaProblem problem;
  std::array<char, 4096> block;
  const auto read_block = [&] { return read(pipe.read.get(), block.data(), block.size()); };
  for (ssize_t count = 0; (count = uninterrupted(read_block)) > 0;) {
    problem.text.append(block.data(), static_cast<size_t>(count));
  }
  int status = 0;
  uninterrupted([&] { return waitpid(child, &status, 0); });
  problem.driver_fails = WIFSIGNALED(status) || WEXITSTATUS(status) == kDriverFails;
  if (WIFSIGNALED(status)) {
    problem.text = fmt::format("CUDA: a process that looked for GPUs was killed by {}",
                               signal_name(WTERMSIG(status)));
  }
  return problem;
}

}  // namespace zerorun
