#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "optim/optimizer.h"
#include "zero/groups/engine_context.h"
#include "zero/storage/chunk_storage.h"

namespace zerorun {

// The values of a step that are the same for all parameters.
struct StepScalars {
  int64_t count = 0;  // number of the step, from 1
  std::span<const ParameterGroup> groups;
  TensorView decision{};  // see UpdateTensors::decision; its factor multiplies the gradient
  // The decision in host memory, for chunks that the host updates.
  TensorView host_decision{};
};

// Consecutive elements of a chunk that are updated with the same scalars. Positions count in the
// stored range.
struct PlannedSegment {
  int64_t begin = 0;
  int64_t end = 0;
  int group = 0;
  Interval first;  // the interval of a parameter with which it begins
};
using SegmentScalars = std::function<UpdateScalars(const Optimizer&, const PlannedSegment&)>;

// Prepares the arguments of Device::update for a chunk: its tensors, and its segments with their
// scalars.
class UpdatePlan {
 public:
  UpdatePlan(const Sharding& sharding, std::span<const Bucket> buckets,
             const ChunkStorage& storage);

  // `params`: see ChunkStorage::open_params.
  UpdateTensors tensors(const ActiveChunk& active, TensorView params,
                        const StepScalars& step) const;
  std::vector<UpdateSegment> segments(const ActiveChunk& active,
                                      const SegmentScalars& scalars) const;
  // The first pass of optimizers with two passes: updates the chunk's states and writes its update
  // direction to `out`, in fp32.
  void find_direction(const ActiveChunk& active, const StepScalars& step, TensorView out) const;

 private:
  std::vector<PlannedSegment> plan(const Bucket& bucket, const Chunk& chunk) const;

  const Sharding& sharding_;
  const ChunkStorage& storage_;
  std::vector<std::vector<std::vector<PlannedSegment>>> segments_;  // by bucket and chunk
};

}  // namespace zerorun
