#include "zero/gradients/bucket_schedule.h"

#include <algorithm>
#include <utility>

namespace zerorun {

BucketSchedule::BucketSchedule(std::vector<int> order) : order_(std::move(order)) {}

std::optional<int> BucketSchedule::next() const {
  return next_ < order_.size() ? std::optional(order_[next_]) : std::nullopt;
}

void BucketSchedule::end_round(bool learn) {
  if (learn) {
    proposal_ = arrivals_;
    for (const int bucket : order_) {
      if (std::find(arrivals_.begin(), arrivals_.end(), bucket) == arrivals_.end()) {
        proposal_.push_back(bucket);
      }
    }
  }
  arrivals_.clear();
  next_ = 0;
}

bool BucketSchedule::wants_change() const {
  if (proposal_.empty() || proposal_ == order_) return false;
  return !changed_ || proposal_ == previous_;
}

void BucketSchedule::end_batch(std::span<const int64_t> agreed) {
  if (!agreed.empty()) {
    order_.assign(agreed.begin(), agreed.end());
    changed_ = true;
  }
  previous_ = std::exchange(proposal_, {});
}

}  // namespace zerorun
