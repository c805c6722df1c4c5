#include "core/wait_clock.h"

#include <algorithm>

namespace zerorun {

namespace {

// The clock of this thread, or null: the one below. It is no state of the program: no thread sees
// that of another but through a stream, and nothing is computed from it but times.
thread_local WaitClock* adopted = nullptr;
thread_local WaitClock own;

}  // namespace

WaitClock& WaitClock::of_this_thread() { return adopted != nullptr ? *adopted : own; }

void WaitClock::adopt() { adopted = this; }

void WaitClock::begin() {
  const int64_t now = steady_ns();
  const std::lock_guard lock(mutex_);
  if (depth_++ == 0) since_ns_ = now;
}

void WaitClock::end() {
  const int64_t now = steady_ns();
  const std::lock_guard lock(mutex_);
  if (--depth_ == 0) total_.peers_ns += now - since_ns_;
}

void WaitClock::add(WaitTimes waited) {
  const std::lock_guard lock(mutex_);
  total_.peers_ns += waited.peers_ns;
  total_.copies_ns += waited.copies_ns;
}

WaitTimes WaitClock::read() const {
  const std::lock_guard lock(mutex_);
  WaitTimes times = total_;
  if (depth_ > 0) times.peers_ns += steady_ns() - since_ns_;
  return times;
}

void WaitClock::serve_offloading() {
  const std::lock_guard lock(mutex_);
  serves_offloading_ = true;
}

bool WaitClock::serves_offloading() const {
  const std::lock_guard lock(mutex_);
  return serves_offloading_;
}

StreamWait::~StreamWait() {
  const int64_t all = steady_ns() - begin_ns_;
  const WaitTimes after = clock_.read();
  const int64_t peers = std::clamp<int64_t>(after.peers_ns - before_.peers_ns, 0, all);
  const int64_t rest = all - peers;
  const int64_t copies = clock_.serves_offloading()
                             ? rest
                             : std::clamp<int64_t>(after.copies_ns - before_.copies_ns, 0, rest);
  WaitClock::of_this_thread().add({peers, copies});
}

}  // namespace zerorun
