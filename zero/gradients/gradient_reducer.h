#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>

#include "amp/step_decider.h"
#include "zero/gradients/gradient_batch.h"
#include "zero/gradients/gradient_norm.h"
#include "zero/gradients/gradient_pool.h"
#include "zero/gradients/quantized_reduction.h"
#include "zero/groups/engine_context.h"
#include "zero/partition/bucket.h"
#include "zero/storage/offload.h"
#include "zerorun/engine.h"

namespace zerorun {

// Takes gradients of parameters, reduces them bucket by bucket over the ranks, and stores the
// reduced gradients. It has the memory and the collectives; GradientBatch decides when a bucket is
// reduced.
//
// Rounds and micro-steps are accumulated after reduction, so the order of summation is the same at
// every stage. If reduction is in place (reduces_in_place), a further round of a batch would find
// the sum in the memory that backward writes to. The sum is then kept elsewhere until that round
// is reduced.
class GradientReducer {
 public:
  // `offload`: null if nothing is offloaded.
  GradientReducer(const EngineContext& context, Buckets& buckets, const StepDecider& decider,
                  Stream& stream, Offload* offload);

  GradientBatch& batch() { return batch_; }
  // Of each reduced bucket of the batch's last round.
  GradientNorm& norm() { return norm_; }
  // Sees each bucket before the reduction, if the next overflow would be fatal.
  GradientInspector& inspector() { return inspector_; }

  // See Engine::gradient.
  GradientView gradient(ParameterId parameter);
  // Copies or adds gradients to the places of their parameters in the buckets. If a bucket was
  // already reduced, its gradient is kept and reduced with the step. Each parameter occurs at most
  // once.
  void add(std::span<const Contribution> gradients);
  // Reduces a bucket that GradientBatch has released.
  void reduce(Bucket& bucket);
  // Ends the round: reduces the remaining buckets, with zeros for unused parameters. Collective.
  void reduce_rest();
  // See EngineHooks::reduce_late_gradients.
  void reduce_late_now();

  // Submits the update, which follows the decision about the step (GradientNorm::decision).
  using SubmitUpdate = std::function<void()>;
  // Computes the norm of the reduced gradient, with one collective in an ordinary step. If a
  // gradient came after its bucket was reduced, on any rank, all ranks reduce such gradients in one
  // more round. Ends the batch and adopts another schedule if rank 0 proposes one. `gather_order`
  // and `shares`: see GradientNorm::Votes. `submit_update`, if not empty, is called before the host
  // knows the norm, and again if late gradients changed it.
  GradientNorm::Result finish(int64_t gather_order, int64_t shares,
                              const SubmitUpdate& submit_update);
  // Discards the gradients of the batch. Not within a round.
  void drop();
  // See EngineHooks::whole_gradient. Waits for all reductions.
  TensorView whole(ParameterId parameter);
  // Computes the norm again, after reduced gradients were overwritten.
  void measure();
  // Waits for all reductions.
  void wait();
  // Frees memory that the last round did not use. Called after the end of the round.
  void trim();

 private:
  // Gradients that came after their bucket was reduced.
  struct Late {
    std::map<ParameterId, Buffer> gradients;  // in the parameters' dtype
    bool agreed = false;                      // no rank has one of the last round or an earlier one
  };

  // The sum of the batch's reduced gradients.
  struct Sum {
    bool in_place = false;  // it is where backward writes
    bool in_norm = false;   // norm_ has a part of it
  };

  // The place of a contribution, and whether it is added to the values there.
  GradientView place_contribution(ParameterId parameter);
  void begin_round();
  // The place of the parameter in its bucket's memory.
  TensorView place(ParameterId parameter);
  // Gives the bucket memory for the gradients of a round.
  void open(Bucket& bucket);
  void fill_missing(const Bucket& bucket);
  // Scales and casts the gradient; returns the tensor to reduce.
  TensorView prepare(BucketGradients& gradients);
  // Adds the gradients of the shard group, and then those sums over the replicas. In fp32 the
  // result is bitwise identical to that of one collective if the size of a group is a power of two,
  // because groups are then subtrees of its summation tree.
  Event reduce_in_groups(const Bucket& bucket, TensorView outgoing, TensorView reduced,
                         Output output);
  // Moves the reduced gradient from `reduced` to where it is stored and adds it to the norm.
  // Returns the event after which backward may write to the bucket again.
  Event store(Bucket& bucket, TensorView reduced);
  // Adds a bucket's stored gradient to the norm.
  void add_stored(const Bucket& bucket);
  void allocate_earlier_sums();
  void move_earlier_sums();
  TensorView earlier_sum(const Bucket& bucket) const;
  void reduce_late();
  void end_batch(bool new_order);

  const EngineContext& context_;
  Buckets& buckets_;
  GradientBatch batch_;
  const StepDecider& decider_;
  GradientNorm norm_;
  GradientInspector inspector_;
  Stream& stream_;
  Offload* const offload_;
  std::optional<QuantizedReduction> quantized_;
  Buffer partial_;  // a shard's sum over the shard group, if there are replicas
  std::optional<GradientPool> pool_;
  std::optional<GradientPool> comm_pool_;  // if comm_dtype is not the parameters' dtype
  Late late_;
  Sum sum_;
};

}  // namespace zerorun
