#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "zero/gradients/gradient_pool.h"
#include "zero/gradients/group_reduction.h"
#include "zero/gradients/micro_step.h"
#include "zero/gradients/step_control.h"
#include "zero/groups/engine_context.h"
#include "zero/storage/bucket_memory.h"
#include "zero/storage/offload.h"
#include "zerorun/engine.h"

namespace zerorun {

// The memory and the collectives between a parameter's gradient and its bucket's reduced gradient.
// MicroStep says when a bucket goes out.
//
// Rounds and micro-steps are added up after reduction, which keeps one order of summation at every
// stage. Where reduction is in place a further round finds the sum in the memory that backward
// writes to; then the sum moves aside until the round is reduced.
class GradientReducer {
 public:
  // The control's inspector sees each bucket before its reduction, its norm after the batch's last;
  // `offload` is null when nothing is offloaded.
  GradientReducer(const EngineContext& context, std::span<const Bucket> buckets,
                  BucketMemory& memory, MicroStep& micro_step, StepControl& control, Stream& stream,
                  Offload* offload);

  // As Engine::gradient.
  GradientView gradient(ParameterId parameter);
  // Copies or adds gradients to the parameters' places in their buckets or, when one has gone out,
  // to what goes out with the step. No parameter comes twice.
  void add(std::span<const Contribution> gradients);
  // Reduces a bucket that MicroStep says may go out.
  void reduce(int index);
  // Ends the round: reduces what is left, with zeros for what was not used. Collective.
  void reduce_rest();

  // Work for the device that is submitted before the host knows the norm; it follows the decision,
  // on the reducer's stream. Called again after gradients that came late.
  using Ahead = std::function<void(TensorView decision)>;
  // The reduced gradient's norm, with one collective in an ordinary step. When gradients came late
  // on any rank, all ranks reduce those in one more round. Ends the batch, and takes over another
  // schedule when rank 0 asks for it. `gather_order` as in GradientNorm::Votes; `ahead`
  // may be empty.
  GradientNorm::Result finish(int64_t gather_order, const Ahead& ahead);
  // Forgets the batch. Not within a round.
  void drop();
  // As EngineHooks::whole_gradient; waits for all reductions.
  TensorView whole(ParameterId parameter);
  // Takes the norm of the reduced gradients again, which somebody has written to.
  void measure();
  // Waits for all reductions.
  void wait();
  // Gives back memory that the last round did not use; after its end.
  void trim();

 private:
  // A bucket between its first gradient and the end of its reduction.
  struct Flight {
    int slot = -1;
    int comm_slot = -1;
    TensorView buffer;
    Event done;
  };

  // The place of a contribution, and whether it is added to what lies there.
  GradientView place_contribution(ParameterId parameter);
  void begin_round();
  // The parameter's place in its bucket's memory.
  TensorView place(ParameterId parameter);
  void open(int bucket);
  void fill_missing(const Bucket& bucket);
  // Scales and casts; returns what goes out.
  TensorView prepare(Flight& flight);
  // After a bucket was reduced to `reduced`: brings it to where it is stored, and adds it to the
  // norm. Returns the event after which backward may write to the bucket again.
  Event store(const Bucket& bucket, TensorView reduced);
  // Adds a bucket's gradient to the norm, from where it is stored.
  void add_stored(const Bucket& bucket);
  void set_sum_aside();
  TensorView sum_aside(const Bucket& bucket) const;
  void reduce_late();
  void end_batch(bool new_order);

  const EngineContext& context_;
  const std::span<const Bucket> buckets_;
  BucketMemory& memory_;
  MicroStep& micro_step_;
  StepControl& control_;
  Stream& stream_;
  Offload* const offload_;
  GroupReduction groups_;
  std::optional<GradientPool> pool_;
  std::optional<GradientPool> comm_pool_;  // when gradients travel in a dtype of their own
  std::vector<Flight> flights_;            // by bucket
  std::map<ParameterId, Buffer> late_;     // in the parameters' dtype
  std::vector<Buffer> aside_;              // by bucket: sums of earlier rounds; usually empty
  bool sum_in_place_ = false;              // the sum lies where backward writes
  bool norm_begun_ = false;
};

}  // namespace zerorun
