#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "zero/gradients/bucket_schedule.h"
#include "zero/partition/bucket.h"
#include "zerorun/engine.h"

namespace zerorun {

// The one place that knows where a batch is: which gradients of the current micro-step are in,
// which bucket goes out next, and whether a step is due. It holds no memory and calls nobody.
//
// Gradients go out in rounds: in each, every rank reduces every trainable bucket once, in the
// schedule's order, with zeros for what it did not use. A micro-step has one round; a further one
// follows when gradients come after the first (another backward before the step). Reduced rounds
// of a batch are added up.
//
// With reduction in place (see reduces_in_place) a round that does not end the batch is not
// reduced: its gradients stay with this rank, and the next round adds to them.
class MicroStep {
 public:
  MicroStep(const Sharding& sharding, const std::vector<Bucket>& buckets);

  struct Location {
    int bucket = -1;  // -1: frozen
    int64_t offset = 0;
    int64_t numel = 0;
  };
  // The place of the parameter's gradient. Throws InternalError for frozen parameters.
  const Location& locate(ParameterId parameter) const;

  BatchState state() const;
  BatchPhase phase() const { return phase_; }
  void set_rule(const BatchRule& rule);
  // True if the current micro-step completes the batch.
  bool is_last() const;
  // True if the gradients of this round stay with this rank.
  bool stays_local() const { return in_place_ && !is_last(); }
  // True if no gradient of this batch has been reduced yet.
  bool is_first_reduction() const { return reductions_ == 0; }

  // --- a round: open() .. close() ---

  void open();
  // True if this is the bucket's first gradient in this round.
  bool fills(int bucket);
  // The parameter's gradient is going to be written; returns whether that adds to what is there.
  // Throws InternalError after the parameter was complete.
  bool write(ParameterId parameter);
  // The same for one of several contributions: an unexpected one may follow the last expected one.
  bool add(ParameterId parameter);
  // True if the parameter's bucket has gone out already.
  bool is_late(ParameterId parameter) const;
  // One contribution has come. A parameter is complete when there were as many as in its last
  // round, at first one: reentrant checkpointing and several backward passes make more.
  void receive(ParameterId parameter);
  void complete(ParameterId parameter);
  // True if the bucket holds nothing of the parameter, so that zeros take its place.
  bool is_missing(ParameterId parameter) const;
  // This rank had a gradient since the last step.
  bool has_gradient() const { return has_gradient_; }
  // The next bucket to go out, if it is complete; it counts as gone.
  std::optional<int> take_ready();
  // The same at the end of a round, complete or not; nullopt: all have gone out.
  std::optional<int> take_next();
  void close();

  // --- a micro-step ---

  // True if the rounds so far are all that the micro-step needs.
  bool is_reduced() const;
  // Returns whether a step is due. After a round; until then there is no next micro-step.
  bool end();
  // The batch was stepped or dropped; `order` as in BucketSchedule::end_batch.
  void end_batch(std::span<const int64_t> order = {});

  const BucketSchedule& schedule() const { return schedule_; }

 private:
  // kept: by an earlier round that stayed with this rank.
  enum class Progress : uint8_t { none, kept, written, complete };
  struct Contribution {
    Progress progress = Progress::none;
    int received = 0;  // in this round
    int expected = 1;
  };
  struct Filling {
    int parameters = 0;
    int incomplete = 0;
    bool begun = false;
    bool gone = false;
  };

  Contribution& contribution(ParameterId parameter) {
    return contributions_[static_cast<size_t>(parameter)];
  }
  std::optional<int> take();

  const std::span<const ParameterSpec> specs_;
  const bool in_place_;
  BatchRule rule_;
  std::vector<Location> locations_;          // by parameter
  std::vector<Contribution> contributions_;  // by parameter
  std::vector<Filling> filling_;             // by bucket
  BucketSchedule schedule_;
  BatchPhase phase_ = BatchPhase::idle;
  int64_t micro_steps_ = 0;       // ended, of this batch
  int64_t reductions_ = 0;        // reduced rounds of this batch
  bool has_gradient_ = false;     // of any parameter, in this batch
  bool first_round_ = false;      // of its micro-step
  bool reduced_as_last_ = false;  // the last closed round ended the batch
};

}  // namespace zerorun
