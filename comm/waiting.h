#pragma once

#include <chrono>

namespace zerorun {

// Decides when a rank that waits prints a notice: after 10 s, and again each time the wait has
// doubled.
class WaitingNotice {
 public:
  // True once for each of these times that `waited` has reached.
  bool due(std::chrono::steady_clock::duration waited) {
    if (waited < next_) return false;
    while (next_ <= waited) next_ *= 2;
    return true;
  }
  // The time from the beginning of the wait to the next notice.
  std::chrono::steady_clock::duration next() const { return next_; }

 private:
  std::chrono::steady_clock::duration next_ = std::chrono::seconds(10);
};

}  // namespace zerorun
