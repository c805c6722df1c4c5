#include "train/run/stop_signal.h"

namespace zerorun::train {

namespace {

// Performs the default action of the signal: ends the process.
void deliver(int signal, const sigset_t& blocked) {
  std::signal(signal, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
  std::raise(signal);
}

}  // namespace

StopSignal::StopSignal() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals_, &previous_mask_);
  watcher_ = std::thread([this] { watch(); });
}

StopSignal::~StopSignal() {
  pthread_sigqueue(watcher_.native_handle(), SIGINT, {.sival_ptr = this});
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
  if (received_ != 0) deliver(received_, signals_);
}

int StopSignal::received() const {
  const std::scoped_lock lock(mutex_);
  return received_;
}

void StopSignal::watch() {
  siginfo_t info = {};
  while (true) {
    const int signal = sigwaitinfo(&signals_, &info);
    if (signal < 0) continue;                                     // interrupted, as by a debugger
    if (info.si_code == SI_QUEUE && info.si_ptr == this) return;  // sent by the destructor
    const std::scoped_lock lock(mutex_);
    if (holding_) {
      received_ = signal;
    } else {
      deliver(signal, signals_);
    }
  }
}

}  // namespace zerorun::train
