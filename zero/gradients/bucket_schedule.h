#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace zerorun {

// The order in which buckets go out, the same on every rank, and how far the current round is.
//
// It begins with the order of backward through the model as it was registered. Rank 0 compares it
// with the order in which its buckets became complete; where that is another one, all ranks take
// it over after a step, so that a bucket which is not complete before the end (an unused pooler or
// expert, a tied embedding) holds nothing back.
class BucketSchedule {
 public:
  explicit BucketSchedule(std::vector<int> order);

  const std::vector<int>& order() const { return order_; }
  // The bucket that goes out next in this round; nullopt: all have.
  std::optional<int> next() const;
  void advance() { ++next_; }
  // All gradients of the bucket are in.
  void arrived(int bucket) { arrivals_.push_back(bucket); }
  // Ends a round. `learn`: its arrivals say what the order should be.
  void end_round(bool learn);

  // True if another order is worth its broadcast: the first that differs from this one, and later
  // only what was seen in two steps in a row. A model that takes another path in each step would
  // ask in vain.
  bool wants_change() const;
  // The order that the last learned round would have had: what arrived as it did, then the rest.
  std::vector<int64_t> proposal() const { return {proposal_.begin(), proposal_.end()}; }
  // After each step: `agreed` is rank 0's proposal, or empty when it asked for no change.
  void end_batch(std::span<const int64_t> agreed);

 private:
  std::vector<int> order_;
  std::vector<int> arrivals_;  // in this round
  std::vector<int> proposal_;  // empty: nothing learned since the last step
  std::vector<int> previous_;  // the proposal of the step before
  size_t next_ = 0;
  bool changed_ = false;  // since the beginning
};

}  // namespace zerorun
