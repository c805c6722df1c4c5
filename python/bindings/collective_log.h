#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "zerorun/communicator.h"

namespace zerorun {

// The collectives that ran since somebody last asked: a bounded list that streams add to.
class CollectiveLog {
 public:
  // Collectives that are kept; what comes on top is only counted.
  static constexpr size_t kMax = 1 << 16;

  void add(const CollectiveSpan& span) {
    const std::lock_guard lock(mutex_);
    if (spans_.size() < kMax) {
      spans_.push_back(span);
    } else {
      ++dropped_;
    }
  }
  // And how many were dropped.
  std::pair<std::vector<CollectiveSpan>, int64_t> take() {
    const std::lock_guard lock(mutex_);
    return {std::exchange(spans_, {}), std::exchange(dropped_, 0)};
  }

 private:
  std::mutex mutex_;
  std::vector<CollectiveSpan> spans_;
  int64_t dropped_ = 0;
};

}  // namespace zerorun
