#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "optim/optimizer.h"
#include "zero/groups/engine_context.h"
#include "zero/storage/chunk_storage.h"

namespace zerorun {

// The values that are the same for all parameters of a step.
struct StepScalars {
  int64_t count = 0;        // of steps, from 1
  float grad_scale = 1.0F;  // multiplies the gradient
  std::span<const ParameterGroup> groups;
  TensorView decision{};  // as UpdateTensors::decision
};

// Neighbours within a chunk that take the same step; elements of the stored range.
struct PlannedSegment {
  int64_t begin = 0;
  int64_t end = 0;
  int group = 0;
  Interval first;  // the parameter's part that it begins with
};
using SegmentScalars = std::function<UpdateScalars(const Optimizer&, const PlannedSegment&)>;

// Prepares Device::update for a chunk: its tensors, and its segments with their scalars.
class UpdatePlan {
 public:
  UpdatePlan(const EngineContext& context, std::span<const Bucket> buckets,
             const BucketMemory& memory, const ChunkStorage& storage);

  // `params` as of ChunkStorage::open_params.
  UpdateTensors tensors(const ActiveChunk& active, TensorView params,
                        const StepScalars& step) const;
  std::vector<UpdateSegment> segments(const ActiveChunk& active,
                                      const SegmentScalars& scalars) const;
  // First of two passes: updates the chunk's states and writes its direction to `out`, in fp32.
  void find_direction(const ActiveChunk& active, const StepScalars& step, TensorView out) const;

 private:
  std::vector<PlannedSegment> plan(const Bucket& bucket, const Chunk& chunk) const;

  const EngineContext& context_;
  const BucketMemory& memory_;
  const ChunkStorage& storage_;
  std::vector<std::vector<std::vector<PlannedSegment>>> segments_;  // by bucket and chunk
};

}  // namespace zerorun
