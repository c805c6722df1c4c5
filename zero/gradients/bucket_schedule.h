#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace zerorun {

// The order in which buckets are reduced, which is the same on every rank, and the progress of the
// current round.
//
// The first order is that of backward through the model as it was registered. Rank 0 compares it
// with the order in which its buckets became complete. If they differ, all ranks adopt the new
// order after a step. So a bucket that is complete only at the end (an unused pooler or expert, a
// tied embedding) does not delay the others.
class BucketSchedule {
 public:
  explicit BucketSchedule(std::vector<int> order);

  const std::vector<int>& order() const { return order_; }
  // The next bucket to reduce in this round; nullopt: all have been reduced.
  std::optional<int> next() const;
  void advance() { ++next_; }
  // All gradients of the bucket are ready.
  void arrived(int bucket) { arrivals_.push_back(bucket); }
  // Ends a round. `learn`: the order in which buckets became complete in this round is the next
  // proposal.
  void end_round(bool learn);

  // True if the proposal should be broadcast to all ranks: the first time that it differs from the
  // current order, and later only if two consecutive steps proposed it. A model that takes another
  // path in each step would otherwise broadcast in every step.
  bool wants_change() const;
  // The proposed order: buckets in the order in which they became complete in the last learned
  // round, then the rest.
  std::vector<int64_t> proposal() const { return {proposal_.begin(), proposal_.end()}; }
  // Called after each step. `agreed`: rank 0's proposal, or empty if it proposed no change.
  void end_batch(std::span<const int64_t> agreed);

 private:
  std::vector<int> order_;
  std::vector<int> arrivals_;  // complete buckets of this round
  std::vector<int> proposal_;  // empty: nothing learned since the last step
  std::vector<int> previous_;  // the proposal of the previous step
  size_t next_ = 0;
  bool changed_ = false;  // the order has changed since construction
};

}  // namespace zerorun
