#include "os/process_identity.h"
#include "train/run/run.h"

namespace zerorun::train {

namespace {

// Performs the default action of the signal: ends the process.
void deliver(int signal, const sigset_t& blocked) {
  std::signal(signal, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
  std::raise(signal);
  // It does not end the first process of a PID namespace, which goes on as before.
  pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
}

}  // namespace

StopSignal::StopSignal() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, SIGTERM);
  if (!is_ignored(SIGHUP)) sigaddset(&signals_, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals_, &previous_mask_);
  watcher_ = std::thread([this] { watch(); });
}

StopSignal::~StopSignal() {
  ending_ = true;
  pthread_kill(watcher_.native_handle(), SIGINT);  // ends its wait at once
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
  // The kernel drops a signal that comes to the first process of a namespace during deliver().
  constexpr timespec kLongest = {.tv_sec = 0, .tv_nsec = 200'000'000};
  while (!ending_) {
    const int signal = sigtimedwait(&signals_, nullptr, &kLongest);
    if (signal < 0) continue;  // none, or interrupted, as by a debugger
    if (ending_) return;       // sent by the destructor
    const std::scoped_lock lock(mutex_);
    if (holding_) {
      received_ = signal;
    } else {
      deliver(signal, signals_);
    }
  }
}

}  // namespace zerorun::train
