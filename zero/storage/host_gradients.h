#pragma once

#include <cstdint>

#include "device/slot_ring.h"
#include "offload/host_pipeline.h"
#include "zero/groups/engine_context.h"
#include "zero/partition/bucket.h"

namespace zerorun {

// Stores reduced gradients if optimizer states are offloaded. The offloaded part of each bucket is
// copied to the host during backward, so that the device holds only the buckets in flight.
// Micro-steps are accumulated where the gradients are stored, in the order in which the reduction
// would add them.
class HostGradients {
 public:
  // Places BucketGradients::host_reduced in the arena.
  HostGradients(const EngineContext& context, std::span<Bucket> buckets, PinnedArena& arena,
                HostPipeline& pipeline);

  // The memory that the bucket should be reduced to. `stream` waits until it is free.
  TensorView output(const Bucket& bucket, Output output, Stream& stream);
  // Copies the reduced gradient from there to where it is stored, or adds it, after the work on
  // `stream`. Returns an event after which `reduced` may be overwritten.
  Event take(Bucket& bucket, TensorView reduced, Output output, Stream& stream);

  // The bytes of the arena for offloaded gradients.
  static size_t host_nbytes(const Sharding& sharding, std::span<const Bucket> buckets);
  // The bytes of device memory for reductions in flight.
  static size_t device_nbytes(const Sharding& sharding, std::span<const Bucket> buckets);

 private:
  const EngineContext& context_;
  HostPipeline& pipeline_;
  SlotRing slots_;  // empty if reduction is in place
};

}  // namespace zerorun
