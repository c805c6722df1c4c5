#pragma once

#include <span>

#include "zero/gradients/quantized_reduction.h"
#include "zero/groups/engine_context.h"
#include "zero/partition/bucket.h"
#include "zerorun/device.h"

namespace zerorun {

// Reduces a bucket's gradient in two steps over groups of ranks. With shard groups, each group adds
// the gradients of its ranks, and then the replicas of each shard add those sums. In fp32 the
// result is bitwise identical to that of one collective if the size of a group is a power of two,
// because groups are then subtrees of its summation tree. With quantized gradients, see
// QuantizedReduction.
class GroupReduction {
 public:
  GroupReduction(const EngineContext& context, std::span<const Bucket> buckets);

  // Writes the stored range of the sum of all ranks' `outgoing` to `reduced`, which may be a part
  // of `outgoing`.
  Event run(const Bucket& bucket, TensorView outgoing, TensorView reduced, Output output,
            Stream& stream);
  // Called after the last reduction of a batch.
  void end_batch(Stream& stream) { quantized_.end_batch(stream); }

 private:
  const EngineContext& context_;
  Buffer partial_;  // a shard's sum over the shard group
  QuantizedReduction quantized_;
};

// The elements of memory that a GroupReduction allocates.
int64_t partial_numel(const Sharding& sharding, std::span<const Bucket> buckets);

}  // namespace zerorun
