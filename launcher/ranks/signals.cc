#include "launcher/ranks/signals.h"

#include <fmt/format.h>

#include <cstring>

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

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

}  // namespace zerorun
