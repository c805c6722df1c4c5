#include "launcher/ranks/signals.h"

#include <fmt/format.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/check.h"

namespace zerorun {

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
  struct sigaction hangup {};
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN) {
    sigdelset(&signals, SIGHUP);
  }
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

}  // namespace zerorun
