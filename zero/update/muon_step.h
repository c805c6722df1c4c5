#pragma once

#include "zero/groups/engine_context.h"
#include "zero/storage/direction.h"
#include "zero/update/update_plan.h"

namespace zerorun {

// The step of matrices that Muon updates. Its direction is a function of the whole matrix: every
// rank gathers the bucket's, works out the matrices that its shard intersects, and applies its
// part.
class MuonStep {
 public:
  // Throws ConfigError naming a parameter that is no matrix.
  MuonStep(const EngineContext& context, std::span<const Bucket> buckets, BucketMemory& memory,
           ChunkStorage& storage, const UpdatePlan& plan, const DirectionMemory& direction);

  // Collective. `comm_stream` then finds the updated shard.
  void run(const Bucket& bucket, const StepScalars& step, Stream& comm_stream);

 private:
  // Momentum, and the direction of the stored range, which goes to `stored`.
  void find_direction(const Bucket& bucket, const StepScalars& step, TensorView stored);
  void orthogonalize(const Bucket& bucket, TensorView direction);
  void apply(const Bucket& bucket, const StepScalars& step, TensorView stored);

  const EngineContext& context_;
  BucketMemory& memory_;
  ChunkStorage& storage_;
  const UpdatePlan& plan_;
  const DirectionMemory& direction_;
  Event direction_read_;  // the host has what it needs of the last bucket's direction
};

}  // namespace zerorun
