#include "train/run/stop_signal.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/check.h"

namespace zerorun::train {

namespace {

sigset_t stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

// Performs the default action of the signal: ends the process.
void deliver(int signal) {
  std::signal(signal, SIG_DFL);
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  std::raise(signal);
}

}  // namespace

StopSignal::StopSignal() {
  const sigset_t signals = stop_signals();
  signals_ = FileDescriptor(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  end_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC));
  if (!signals_ || !end_) fail<IoError>("cannot watch for signals: {}", std::strerror(errno));
  pthread_sigmask(SIG_BLOCK, &signals, &previous_mask_);
  watcher_ = std::thread([this] { watch(); });
}

StopSignal::~StopSignal() {
  ::eventfd_write(end_.get(), 1);
  watcher_.join();
  pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr);
}

void StopSignal::hold() {
  const std::scoped_lock lock(mutex_);
  holding_ = true;
}

void StopSignal::release() {
  const std::scoped_lock lock(mutex_);
  holding_ = false;
  if (received_ != 0) deliver(received_);
}

int StopSignal::received() const {
  const std::scoped_lock lock(mutex_);
  return received_;
}

void StopSignal::watch() {
  std::array<pollfd, 2> waits = {{{signals_.get(), POLLIN, 0}, {end_.get(), POLLIN, 0}}};
  while (waits[1].revents == 0) {
    if (::poll(waits.data(), waits.size(), -1) < 0) continue;
    signalfd_siginfo info = {};
    while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      take(static_cast<int>(info.ssi_signo));
    }
  }
}

void StopSignal::take(int signal) {
  const std::scoped_lock lock(mutex_);
  if (holding_) {
    received_ = signal;
  } else {
    deliver(signal);
  }
}

}  // namespace zerorun::train
