#pragma once

#include "zero/groups/engine_context.h"
#include "zero/storage/direction.h"
#include "zero/update/update_plan.h"

namespace zerorun {

// The update of matrices by Muon. The update direction is a function of the whole matrix. So every
// rank gathers the bucket's direction as computed from momentum, orthogonalizes the matrices that
// intersect its shard, and applies its part.
class MuonStep {
 public:
  // Throws ConfigError that names the parameter if one is not a matrix.
  MuonStep(const EngineContext& context, std::span<const Bucket> buckets, ChunkStorage& storage,
           const UpdatePlan& plan, const DirectionMemory& direction);

  // Collective. Later work on `comm_stream` sees the updated shard. `applied`: the step for the
  // orthogonalized direction, which the gradient's factor does not scale.
  void run(const Bucket& bucket, const StepScalars& step, const StepScalars& applied,
           Stream& comm_stream);

 private:
  // Updates the momentum and writes the direction of the stored range to `stored`.
  void find_direction(const Bucket& bucket, const StepScalars& step, TensorView stored);
  // Orthogonalizes the matrices and scales them by the factor of their shape.
  void orthogonalize(const Bucket& bucket, const StepScalars& step, TensorView direction);
  UpdateScalars scalars_of(const Bucket& bucket, const StepScalars& step,
                           ParameterId parameter) const;
  void apply(const Bucket& bucket, const StepScalars& step, TensorView stored);

  const EngineContext& context_;
  ChunkStorage& storage_;
  const UpdatePlan& plan_;
  const DirectionMemory& direction_;
  Event direction_read_;  // the host has read the direction of the last bucket
};

}  // namespace zerorun
