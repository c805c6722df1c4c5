#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "zero/partition/bucket.h"
#include "zerorun/engine.h"

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

// The state machine of a batch: which gradients of the current micro-step are ready, which bucket
// is reduced next, and whether a step is due. It uses no memory of buckets and calls nothing.
//
// Gradients are reduced in rounds. In a round, every rank reduces every trainable bucket once, in
// the schedule's order, with zeros for unused parameters. A micro-step has one round; another
// follows if gradients come after the first (a second backward before the step). The reduced
// gradients of all rounds of a batch are added.
//
// If reduction is in place (reduces_in_place), a round that does not end the batch is not reduced:
// its gradients stay on this rank, and the next round adds to them.
class GradientBatch {
 public:
  GradientBatch(const Sharding& sharding, Buckets& buckets);

  // The place of the parameter's gradient in its bucket. Throws InternalError for frozen
  // parameters.
  const ParameterPlace& place_of(ParameterId parameter) const;

  BatchState state() const;
  BatchPhase phase() const { return phase_; }
  void set_rule(const BatchRule& rule);
  // True if the current micro-step completes the batch.
  bool is_last() const;
  // True if the gradients of this round are not reduced and stay on this rank.
  bool stays_local() const { return in_place_ && !is_last(); }
  // True if no gradient of this batch has been reduced yet.
  bool is_first_reduction() const { return reductions_ == 0; }

  // --- a round: open() .. close() ---

  void open();
  // Called before the parameter's gradient is written. Returns true if it is added to values that
  // are there. Throws InternalError if the parameter was already complete.
  bool write(ParameterId parameter);
  // As write(), for one of several contributions to the gradient. A contribution may follow the
  // last expected one.
  bool add(ParameterId parameter);
  // True if the parameter's bucket was already reduced in this round.
  bool is_late(ParameterId parameter) const;
  // Counts one contribution. A parameter is complete when there were as many as in its last round;
  // in the first round, one. Reentrant checkpointing and several backward passes make more than
  // one.
  void receive(ParameterId parameter);
  void complete(ParameterId parameter);
  // True if the bucket has no gradient of the parameter, so that zeros have to be written.
  bool is_missing(ParameterId parameter) const;
  // True if this rank had a gradient since the last step.
  bool has_gradient() const { return has_gradient_; }
  // The next bucket to reduce, if it is complete; null: it is not.
  Bucket* pop_ready();
  // The next bucket to reduce at the end of a round, complete or not; null: all are reduced.
  Bucket* pop_next();
  void close();

  // --- a micro-step ---

  // True if the micro-step needs no further round.
  bool is_reduced() const;
  // Ends the micro-step after a round and returns whether a step is due. The next micro-step cannot
  // begin before.
  bool end();
  // Called after the batch was applied or dropped. `order`: see BucketSchedule::end_batch.
  void end_batch(std::span<const int64_t> order = {});

  const BucketSchedule& schedule() const { return schedule_; }

 private:
  // kept: an earlier round that stayed on this rank wrote the gradient.
  enum class Progress : uint8_t { none, kept, written, complete };
  struct Contribution {
    Progress progress = Progress::none;
    int received = 0;  // in this round
    int expected = 1;
  };
  Contribution& contribution(ParameterId parameter) {
    return contributions_[static_cast<size_t>(parameter)];
  }
  Bucket* next() const;

  Buckets& buckets_;
  const std::span<const ParameterSpec> specs_;
  const bool in_place_;
  BatchRule rule_;
  std::vector<Contribution> contributions_;  // by parameter
  BucketSchedule schedule_;
  BatchPhase phase_ = BatchPhase::idle;
  int64_t micro_steps_ = 0;       // ended micro-steps of this batch
  int64_t reductions_ = 0;        // reduced rounds of this batch
  bool has_gradient_ = false;     // of any parameter, in this batch
  bool first_round_ = false;      // this is the first round of its micro-step
  bool reduced_as_last_ = false;  // the last closed round ended the batch
};

}  // namespace zerorun
