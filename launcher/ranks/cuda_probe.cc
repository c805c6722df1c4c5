#include <fmt/ranges.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "comm/device_communicator.h"
#include "config/env.h"
#include "core/check.h"
#include "device/cuda_backend.h"
#include "launcher/ranks/process.h"
#include "launcher/ranks/resources.h"
#include "launcher/words.h"
#include "os/uninterrupted.h"

namespace zerorun {

namespace {

constexpr int kDriverFails = 2;  // exit status of the child

bool write_text(int out, const std::string& text) {
  return write(out, text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

std::string killed(int status) {
  return fmt::format("CUDA: a process that looked for GPUs was killed by {}",
                     signal_name(WTERMSIG(status)));
}

std::string no_answer(std::chrono::seconds patience, std::string_view what) {
  return fmt::format(
      "NVIDIA's driver has not said within {} s {} (does nvidia-smi answer? "
      "ZERORUN_DRIVER_TIMEOUT=600 waits longer)",
      patience.count(), what);
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

ChildAnswer ask_child(const std::function<int(int out)>& answer, std::chrono::seconds patience) {
  Pipe pipe = make_pipe();
  signal(SIGCHLD, SIG_DFL);  // a parent that ignores it would hide from us how the child ends
  const pid_t child = fork();
  if (child < 0) fail<IoError>("cannot start a process: {}", std::strerror(errno));
  // An exception ends the child here: its way on would lead through the launcher.
  const auto answer_or_end = [&]() noexcept { return answer(pipe.write.get()); };
  if (child == 0) _exit(answer_or_end());
  pipe.write.close();
  ChildAnswer result;
  const auto end = steady_clock::now() + patience;
  if (read_answer(pipe.read.get(), end, result.text) && reap(child, end, result.status)) {
    return result;
  }
  // One that waits within the driver may stay until that answers, even when it is killed.
  kill(child, SIGKILL);
  reap(child, steady_clock::now() + std::chrono::seconds(1), result.status);
  result.in_time = false;
  return result;
}

std::chrono::seconds driver_patience() {
  constexpr long kDefault = 120;  // many GPUs without persistence mode take some
  constexpr long kDay = 86400;
  return std::chrono::seconds(
      read_environment_int("ZERORUN_DRIVER_TIMEOUT", 1, kDay).value_or(kDefault));
}

CudaProblem ask_for_cuda_problem(std::chrono::seconds patience) {
  const ChildAnswer answer = ask_child(
      [](int out) {
        if (!write_text(out, why_no_cuda())) return 1;
        return why_driver_fails().empty() ? 0 : kDriverFails;
      },
      patience);
  if (!answer.in_time) return {"CUDA: " + no_answer(patience, "whether a GPU can be used"), true};
  if (WIFSIGNALED(answer.status)) return {killed(answer.status), true};
  return {answer.text, WEXITSTATUS(answer.status) == kDriverFails};
}

std::vector<std::string> ask_about_cuda(std::chrono::seconds patience) {
  const ChildAnswer answer = ask_child(
      [](int out) {
        std::vector<std::string> lines = describe_cuda();
        lines.push_back(describe_device_collectives());
        return write_text(out, fmt::format("{}", fmt::join(lines, "\n"))) ? 0 : 1;
      },
      patience);
  if (!answer.in_time) return {no_answer(patience, "what it is and which GPUs it has")};
  if (WIFSIGNALED(answer.status)) return {killed(answer.status)};
  std::vector<std::string> lines;
  for (const std::string_view line : split(answer.text, '\n')) {
    if (!line.empty()) lines.emplace_back(line);
  }
  return lines;
}

}  // namespace zerorun
