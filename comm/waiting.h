#pragma once

#include <chrono>

namespace zerorun {

// Says when one wait has become long enough to be told: after 10 s, and then each time that it has
// doubled.
class WaitingNotice {
 public:
  // True once for each of those times.
  bool due(std::chrono::steady_clock::duration waited) {
    if (waited < next_) return false;
    while (next_ <= waited) next_ *= 2;
    return true;
  }
  // From the beginning of the wait to the coming notice.
  std::chrono::steady_clock::duration next() const { return next_; }

 private:
  std::chrono::steady_clock::duration next_ = std::chrono::seconds(10);
};

}  // namespace zerorun
