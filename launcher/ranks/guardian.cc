#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "core/check.h"
#include "core/log.h"
#include "launcher/ranks/process.h"
#include "launcher/ranks/report.h"

namespace zerorun {

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
