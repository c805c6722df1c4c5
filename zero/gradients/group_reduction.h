#pragma once

#include <span>

#include "zero/gradients/quantized_reduction.h"
#include "zero/groups/engine_context.h"
#include "zero/partition/bucket.h"
#include "zerorun/device.h"

namespace zerorun {

// Adds a bucket's gradient over ranks in groups. Shard groups: each adds its ranks' gradients, and
// then the replicas of a shard add those sums. In fp32 the bits are those of one collective, if the
// size of a group is a power of two: groups are branches of its tree. Hosts, where gradients travel
// in few bits: as QuantizedReduction does.
class GroupReduction {
 public:
  GroupReduction(const EngineContext& context, std::span<const Bucket> buckets);

  // `reduced` gets the stored range of the sum of all ranks' `outgoing`, of which it may be a part.
  Event run(const Bucket& bucket, TensorView outgoing, TensorView reduced, Output output,
            Stream& stream);
  // After the last reduction of a batch.
  void end_batch(Stream& stream) { quantized_.end_batch(stream); }

 private:
  const EngineContext& context_;
  Buffer partial_;  // a shard's sum over its group
  QuantizedReduction quantized_;
};

// Elements of its memory.
int64_t partial_numel(const Sharding& sharding, std::span<const Bucket> buckets);

}  // namespace zerorun
