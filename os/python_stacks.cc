#include "os/python_stacks.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <system_error>
#include <thread>

#include "os/text_file.h"

namespace zerorun {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPause{30};
constexpr uint64_t kMaxTextBytes = uint64_t{1} << 20;

bool catches(pid_t pid, int signal) {
  uint64_t caught = 0;
  text_after(fmt::format("/proc/{}/status", pid), "SigCgt:") >> std::hex >> caught;
  return (caught >> (signal - 1) & 1) != 0;
}

std::string content_of(const std::string& path, size_t from) {
  std::string text;
  if (try_read_text(path, kMaxTextBytes, text) != 0 || text.size() <= from) return {};
  return text.substr(from);
}

// The file to which the Python of a process writes, or nothing.
std::string file_of(pid_t pid) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(fmt::format("/proc/{}/fd", pid), error), end;
       !error && entry != end; entry.increment(error)) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(*entry, gone);
    if (target.find(kPythonStackFile) != std::string::npos) return entry->path();
  }
  return {};
}

}  // namespace

int python_stack_signal() { return SIGRTMAX - 10; }

std::string python_stacks_of(const ProcessIdentity& process, std::chrono::milliseconds patience) {
  const Clock::time_point until = Clock::now() + patience;
  const pid_t pid = process.pid;
  const auto stat = read_process_stat(pid);
  // A stopped process answers when it goes on, and then nobody listens.
  if (!is_running(process) || !stat || stat->state == 'T' || stat->state == 't') return {};
  if (!catches(pid, python_stack_signal())) return {};
  const std::string path = file_of(pid);
  if (path.empty()) return {};
  const size_t before = content_of(path, 0).size();
  if (syscall(SYS_tgkill, pid, pid, python_stack_signal()) != 0) return {};
  // faulthandler does not say when it is done: it is when nothing comes any more.
  std::string text;
  while (true) {
    std::this_thread::sleep_for(kPause);
    std::string longer = content_of(path, before);
    const bool done = !longer.empty() && longer.size() == text.size();
    text = std::move(longer);
    if (done || Clock::now() >= until) return text;
  }
}

}  // namespace zerorun
