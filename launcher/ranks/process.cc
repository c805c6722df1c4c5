#include "launcher/ranks/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "core/check.h"
#include "core/log.h"
#include "core/parse_number.h"
#include "launcher/ranks/report.h"
#include "os/open_file.h"
#include "os/process_identity.h"
#include "os/uninterrupted.h"

namespace zerorun {

namespace {

class CpuMask {
 public:
  explicit CpuMask(const std::vector<int>& cpus) {
    if (cpus.empty()) return;
    const auto highest = static_cast<size_t>(*std::ranges::max_element(cpus));
    sets_.resize(highest / CPU_SETSIZE + 1);
    for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), nbytes(), sets_.data());
  }
  // Binding is a matter of speed: a CPU that went away meanwhile is no reason not to run.
  void apply() const {
    if (!sets_.empty()) sched_setaffinity(0, nbytes(), sets_.data());
  }

 private:
  size_t nbytes() const { return sets_.size() * sizeof(cpu_set_t); }
  std::vector<cpu_set_t> sets_;
};

// Calls only what may be called between fork and exec: memory is prepared before the fork.
[[noreturn]] void run_child(const SpawnRequest& request, const std::vector<char*>& command,
                            const std::vector<char*>& environment, const CpuMask& cpus,
                            pid_t parent, int failure) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it died before the line above
  cpus.apply();
  if (request.standard_input >= 0) dup2(request.standard_input, STDIN_FILENO);
  if (request.standard_output >= 0) dup2(request.standard_output, STDOUT_FILENO);
  if (request.standard_error >= 0) dup2(request.standard_error, STDERR_FILENO);
  if (request.kept_open >= 0) fcntl(request.kept_open, F_SETFD, 0);
  for (const int ignored : {SIGPIPE, SIGXFSZ}) signal(ignored, SIG_DFL);  // by the launcher
  // A shell without job control starts background jobs with the first two ignored, and whoever
  // ignores the third lets the launcher end, which takes all three for a request.
  for (const int stop : {SIGINT, SIGQUIT, SIGTERM}) signal(stop, SIG_DFL);
  sigprocmask(SIG_SETMASK, &request.signal_mask, nullptr);
  execve(command[0], command.data(), environment.data());
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(failure, &error, sizeof(error));
  _exit(127);
}

// Reaps what has ended; false when there are no children at all.
bool reap_children() {
  for (;;) {
    const pid_t pid = waitpid(-1, nullptr, WNOHANG);
    if (pid == 0) return true;
    if (pid < 0) return errno == EINTR;
  }
}

}  // namespace

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    fail<IoError>("cannot make a pipe: {}{}", std::strerror(errno), remedy_of_limit(errno));
  }
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

std::vector<char*> exec_pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

pid_t spawn(const SpawnRequest& request) {
  const std::vector<char*> command = exec_pointers(request.command);
  const std::vector<char*> environment = exec_pointers(request.environment);
  const CpuMask cpus(request.cpus);
  Pipe failure = make_pipe();  // exec closes it
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) {
    fail<IoError>("cannot start {}: {}", request.command.front(), std::strerror(errno));
  }
  if (child == 0) run_child(request, command, environment, cpus, parent, failure.write.get());
  setpgid(child, child);  // in both: whoever comes first, the group exists from here on
  failure.write.close();
  int error = 0;
  const ssize_t count =
      uninterrupted([&] { return read(failure.read.get(), &error, sizeof(error)); });
  if (count != sizeof(error)) return child;
  fail<ConfigError>("cannot execute {}: {}{}", request.command.front(), std::strerror(error),
                    error == ENOEXEC ? "; a script needs a first line such as #!/bin/sh" : "");
}

void adopt_orphans() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

bool has_children() {
  siginfo_t info{};
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

std::vector<pid_t> descendants() {
  std::multimap<pid_t, pid_t> children;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::optional<pid_t> pid = parse_number<pid_t>(entry.path().filename().string());
    if (!pid) continue;
    if (const auto stat = read_process_stat(*pid)) children.emplace(stat->parent, *pid);
  }
  std::vector<pid_t> found = {getpid()};
  for (size_t i = 0; i < found.size(); ++i) {
    const auto [begin, end] = children.equal_range(found[i]);
    for (auto child = begin; child != end; ++child) found.push_back(child->second);
  }
  found.erase(found.begin());
  return found;
}

void kill_descendants() {
  for (const pid_t pid : descendants()) kill(pid, SIGKILL);
}

bool end_descendants(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  sigset_t child_signal;
  sigemptyset(&child_signal);
  sigaddset(&child_signal, SIGCHLD);
  for (;;) {
    kill_descendants();
    if (!reap_children()) return true;
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= left.zero()) return false;
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
    const timespec wait = {static_cast<time_t>(ns / 1'000'000'000),
                           static_cast<long>(ns % 1'000'000'000)};
    sigtimedwait(&child_signal, nullptr, &wait);
  }
}

void PollSet::add(int fd, short events, std::function<void()> handler) {
  if (fd < 0) return;
  entries_.push_back({fd, events, 0});
  handlers_.push_back(std::move(handler));
}

void PollSet::wait(std::chrono::milliseconds timeout) {
  if (poll(entries_.data(), entries_.size(), static_cast<int>(timeout.count())) < 0) {
    if (errno == EINTR) return;
    fail<IoError>("poll failed: {}", std::strerror(errno));
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].revents != 0) handlers_[i]();
  }
}

SignalRole role_of(int signal) {
  switch (signal) {
    case SIGCHLD:
      return SignalRole::child;
    case SIGINT:
    case SIGTERM:
    case SIGHUP:
    case SIGQUIT:
      return SignalRole::stop;
    case SIGUSR1:
    case SIGUSR2:
      return SignalRole::pass;
    case SIGTSTP:
      return SignalRole::suspend;
    case SIGCONT:
      return SignalRole::resume;
    default:
      return SignalRole::none;
  }
}

sigset_t supervised_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal = 1; signal < SIGRTMIN; ++signal) {
    if (role_of(signal) != SignalRole::none) sigaddset(&signals, signal);
  }
  if (is_ignored(SIGHUP)) sigdelset(&signals, SIGHUP);
  return signals;
}

FileDescriptor open_signals() {
  const sigset_t signals = supervised_signals();
  FileDescriptor descriptor(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!descriptor) fail<IoError>("cannot open a signalfd: {}", std::strerror(errno));
  return descriptor;
}

std::vector<int> take_signals(const FileDescriptor& signals) {
  std::vector<int> taken;
  signalfd_siginfo info{};
  while (read(signals.get(), &info, sizeof(info)) == sizeof(info)) {
    taken.push_back(static_cast<int>(info.ssi_signo));
  }
  return taken;
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

namespace {

constexpr std::chrono::seconds kOrphanTimeout{5};
// The supervisor's time to end after the lifeline was cut. The coordinator knows as well, and has
// told it.
constexpr std::chrono::seconds kLifelineGrace{2};
// The supervisor ends everything at the second Ctrl-C; at the third one it is stuck.
constexpr int kInterruptsUntilForce = 3;

int supervise_as_child(const Supervise& supervise, const FileDescriptor& guardian,
                       const sigset_t& original_mask) {
  // Away from the terminal's signals (the guardian passes them on), and under a name of its own so
  // that `killall zerorun` means the guardian.
  setsid();
  prctl(PR_SET_NAME, "zr-supervisor");
  adopt_orphans();
  return supervise(guardian, original_mask);
}

// The supervisor's wait status if it has ended.
std::optional<int> reap(pid_t supervisor) {
  for (;;) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid == supervisor) return status;
    if (pid <= 0) return std::nullopt;
  }
}

// Waits for one of `signals`, at most a moment where there is a lifeline to look at; -1 if none
// came.
int next_signal(const sigset_t& signals, const FileDescriptor& lifeline) {
  if (!lifeline) return sigwaitinfo(&signals, nullptr);
  constexpr timespec kMoment = {0, 500'000'000};
  return sigtimedwait(&signals, nullptr, &kMoment);
}

bool is_cut(const FileDescriptor& lifeline) {
  pollfd entry = {lifeline.get(), POLLIN, 0};
  char byte = 0;
  return lifeline && poll(&entry, 1, 0) > 0 && read(lifeline.get(), &byte, 1) <= 0;
}

// Passes signals on until the supervisor has ended.
int guard(pid_t supervisor, const sigset_t& signals, const FileDescriptor& lifeline) {
  using Clock = std::chrono::steady_clock;
  int interrupts = 0;
  std::optional<Clock::time_point> cut;
  for (;;) {
    const int signal = next_signal(signals, lifeline);
    if (!cut && is_cut(lifeline)) cut = Clock::now();
    if (cut && Clock::now() - *cut > kLifelineGrace) kill(supervisor, SIGKILL);
    switch (role_of(signal)) {
      case SignalRole::child:
        if (const auto status = reap(supervisor)) return *status;
        break;
      case SignalRole::suspend:
        kill(supervisor, SIGTSTP);
        raise(SIGSTOP);
        break;
      case SignalRole::stop:
        if (signal == SIGINT) ++interrupts;
        kill(supervisor, interrupts < kInterruptsUntilForce ? signal : SIGKILL);
        break;
      case SignalRole::pass:
      case SignalRole::resume:
        kill(supervisor, signal);
        break;
      case SignalRole::none:
        break;  // none came, or the wait was interrupted
    }
  }
}

}  // namespace

int run_guarded(Supervise supervise, FileDescriptor lifeline) {
  open_standard_streams();
  adopt_orphans();
  signal(SIGCHLD, SIG_DFL);  // a parent that ignores it would hide from us how ranks end
  const sigset_t signals = supervised_signals();
  sigset_t original_mask;
  sigprocmask(SIG_BLOCK, &signals, &original_mask);
  Pipe alive = make_pipe();
  const pid_t supervisor = fork();
  if (supervisor < 0) fail<IoError>("cannot start the supervisor: {}", std::strerror(errno));
  if (supervisor == 0) {
    alive.write.close();
    lifeline.close();
    return supervise_as_child(supervise, alive.read, original_mask);
  }
  supervise = nullptr;
  alive.read.close();
  const int status = guard(supervisor, signals, lifeline);
  if (WIFSIGNALED(status)) {
    end_descendants(kOrphanTimeout);
    Logger().log(LogLevel::error, "the launcher's supervisor was killed by {}; all ranks are ended",
                 signal_name(WTERMSIG(status)));
  }
  return exit_code_of(status);
}

}  // namespace zerorun
