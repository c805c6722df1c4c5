#pragma once

#include <optional>
#include <span>

#include "zero/groups/engine_context.h"
#include "zero/storage/direction.h"
#include "zero/update/muon_step.h"
#include "zero/update/optimizer_states.h"
#include "zero/update/update_plan.h"

namespace zerorun {

class LambNorms;

// The optimizer's step over this rank's shards: one pass over all chunks, which updates master,
// states and parameters. Lamb goes over them once before, and Muon's matrices have a step of their
// own.
class ShardedStep {
 public:
  // Collective. Throws ConfigError when a parameter does not fit its rule, naming it.
  ShardedStep(const EngineContext& context, std::span<const Bucket> buckets, BucketMemory& memory,
              ChunkStorage& storage, std::span<const Optimizer> rules);

  // True if a step can be submitted whole before it is decided about. Lamb's host reads norms.
  bool can_follow_decision() const { return !is_lamb_; }
  // Calls `gather_updated` for every trainable bucket; what that puts on `comm_stream` finds the
  // updated shard. Offloaded chunks are updated beside the others. Collective; what the ranks
  // exchange goes over `comm_stream`.
  void run(const StepScalars& step, Stream& comm_stream, const GatherUpdated& gather_updated);

 private:
  // The bucket that is updated as the `i`th. Below stage 3 buckets begin with the model's last
  // parameters, and the next forward with its first; what is offloaded comes as it is read.
  const Bucket& nth(size_t i) const { return buckets_[last_first_ ? buckets_.size() - 1 - i : i]; }
  void update_chunk(const Bucket& bucket, const Chunk& chunk, const StepScalars& step,
                    const SegmentScalars& scalars);
  // Lamb scales each parameter's step by the ratio of two norms, which this pass adds up.
  void find_lamb_norms(const StepScalars& step, Stream& comm_stream, LambNorms& norms);

  const EngineContext& context_;
  const std::span<const Bucket> buckets_;
  BucketMemory& memory_;
  ChunkStorage& storage_;
  const bool last_first_;  // the order of `nth`
  const bool is_lamb_;
  const DirectionMemory direction_;
  const UpdatePlan plan_;
  MuonStep muon_;
};

}  // namespace zerorun
