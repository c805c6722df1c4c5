#include "train/run/stream_clock.h"

namespace zerorun::train {

StreamClock::StreamClock(Device& device)
    : device_(device), thread_(device.is_host() ? nullptr : make_worker_stream("zerorun-clock")) {}

void StreamClock::mark() {
  if (!thread_) {
    device_.inline_stream().synchronize();
    time_ = std::chrono::steady_clock::now();
    return;
  }
  thread_->wait(device_.inline_stream().record());
  thread_->submit([this] { time_ = std::chrono::steady_clock::now(); });
}

StreamClock::Time StreamClock::read() {
  if (thread_) thread_->synchronize();
  return time_;
}

}  // namespace zerorun::train
