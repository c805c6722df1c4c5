#include "os/process_stacks.h"

#include <cxxabi.h>
#include <execinfo.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string_view>
#include <thread>

#include "os/elf_symbols.h"
#include "os/file_descriptor.h"
#include "os/process_stat.h"
#include "os/text_file.h"

namespace zerorun {

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kNativeStackFile = "zerorun native stack";
constexpr std::string_view kEnd = "end\n";
constexpr std::chrono::milliseconds kPause{10};
constexpr int kMaxFrames = 64;
constexpr int kOwnFrames = 2;  // of the handler and of the kernel's return from it
constexpr uint64_t kMaxTextBytes = uint64_t{1} << 20;

int native_stack_signal() { return SIGRTMAX - 9; }

// Runs in whatever the main thread does, so it takes no memory and no lock of ours. The signal
// brings the number of a file of the process that asks: nothing has to be kept here.
void write_native_stack(int /*signal*/, siginfo_t* info, void* /*context*/) {
  const int saved = errno;
  std::array<char, 64> path{};
  *fmt::format_to_n(path.data(), path.size() - 1, "/proc/{}/fd/{}", info->si_pid,
                    info->si_value.sival_int)
       .out = '\0';
  // A process that was stopped comes here late, when the number may be another file's.
  std::array<char, 64> target{};
  const ssize_t length = readlink(path.data(), target.data(), target.size());
  const std::string_view name(target.data(), length < 0 ? 0 : static_cast<size_t>(length));
  const int file = name.find(kNativeStackFile) != std::string_view::npos
                       ? open(path.data(), O_WRONLY | O_APPEND | O_CLOEXEC)
                       : -1;
  if (file >= 0) {
    std::array<void*, kMaxFrames> frames{};
    const int count = backtrace(frames.data(), kMaxFrames);
    if (count > kOwnFrames) {
      backtrace_symbols_fd(frames.data() + kOwnFrames, count - kOwnFrames, file);
    }
    if (write(file, kEnd.data(), kEnd.size()) < 0) errno = 0;  // nobody is left to be told
    close(file);
  }
  errno = saved;
}

bool catches(pid_t pid, int signal) {
  std::string text;
  if (try_read_text(fmt::format("/proc/{}/status", pid), kMaxTextBytes, text) != 0) return false;
  constexpr std::string_view kField = "SigCgt:\t";
  const size_t at = text.find(kField);
  if (at == std::string::npos) return false;
  uint64_t caught = 0;
  std::from_chars(text.data() + at + kField.size(), text.data() + text.size(), caught, 16);
  return (caught >> (signal - 1) & 1) != 0;
}

std::string content_of(const std::string& path, size_t from) {
  std::string text;
  if (try_read_text(path, kMaxTextBytes, text) != 0 || text.size() <= from) return {};
  return text.substr(from);
}

std::string native_stack_of(pid_t pid, Clock::time_point until) {
  if (!catches(pid, native_stack_signal())) return {};
  const FileDescriptor file(memfd_create(kNativeStackFile, MFD_CLOEXEC));
  if (!file || sigqueue(pid, native_stack_signal(), {.sival_int = file.get()}) != 0) return {};
  const std::string path = fmt::format("/proc/self/fd/{}", file.get());
  std::string text;
  while (!(text = content_of(path, 0)).ends_with(kEnd)) {
    if (Clock::now() >= until) return {};
    std::this_thread::sleep_for(kPause);
  }
  std::istringstream lines(text.substr(0, text.size() - kEnd.size()));
  std::string readable;
  for (std::string line; std::getline(lines, line);) readable += readable_frame(line) + '\n';
  return readable;
}

// The file to which the Python of a process writes, or nothing.
std::string python_file_of(pid_t pid) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(fmt::format("/proc/{}/fd", pid), error), end;
       !error && entry != end; entry.increment(error)) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(*entry, gone);
    if (target.find(kPythonStackFile) != std::string::npos) return entry->path();
  }
  return {};
}

std::string python_stack_of(pid_t pid, Clock::time_point until) {
  if (!catches(pid, python_stack_signal())) return {};
  const std::string path = python_file_of(pid);
  if (path.empty()) return {};
  const size_t before = content_of(path, 0).size();
  if (kill(pid, python_stack_signal()) != 0) return {};
  // faulthandler does not say when it is done: it is when nothing comes any more.
  std::string text;
  while (true) {
    std::this_thread::sleep_for(3 * kPause);
    std::string longer = content_of(path, before);
    const bool done = !longer.empty() && longer.size() == text.size();
    text = std::move(longer);
    if (done || Clock::now() >= until) return text;
  }
}

}  // namespace

int python_stack_signal() { return SIGRTMAX - 10; }

void answer_stack_requests() {
  struct sigaction present {};
  if (sigaction(native_stack_signal(), nullptr, &present) != 0) return;
  if ((present.sa_flags & SA_SIGINFO) != 0 || present.sa_handler != SIG_DFL) return;
  // The first call loads a library, which a handler must not.
  std::array<void*, 1> frame{};
  backtrace(frame.data(), static_cast<int>(frame.size()));
  struct sigaction action {};
  action.sa_sigaction = write_native_stack;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigfillset(&action.sa_mask);
  sigaction(native_stack_signal(), &action, nullptr);
}

ProcessStacks stacks_of(const ProcessIdentity& process, std::chrono::milliseconds patience) {
  const Clock::time_point until = Clock::now() + patience;
  const auto stat = read_process_stat(process.pid);
  // A stopped process answers when it goes on, and then nobody listens.
  if (!is_running(process) || !stat || stat->state == 'T' || stat->state == 't') return {};
  return {.native = native_stack_of(process.pid, until),
          .python = python_stack_of(process.pid, until)};
}

// A line is "file(function+0x12) [0x7f..]" or "file(+0x1234) [0x7f..]".
std::string readable_frame(const std::string& line) {
  const size_t open = line.find('(');
  const size_t plus = line.find('+', open == std::string::npos ? 0 : open);
  const size_t close = line.find(')', plus == std::string::npos ? 0 : plus);
  if (open == std::string::npos || plus == std::string::npos || close == std::string::npos) {
    return line;
  }
  const std::string file = line.substr(0, open);
  std::string name = line.substr(open + 1, plus - open - 1);
  const std::string offset = line.substr(plus + 1, close - plus - 1);
  const std::string short_file = file.substr(file.rfind('/') + 1);
  if (name.empty()) name = elf_symbol_at(file, std::strtoull(offset.c_str(), nullptr, 16));
  if (name.empty()) return fmt::format("{}: + {}", short_file, offset);
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> demangled(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), std::free);
  return fmt::format("{}: {}", short_file, status == 0 ? demangled.get() : name.c_str());
}

}  // namespace zerorun
