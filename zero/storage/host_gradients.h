#pragma once

#include <cstdint>
#include <vector>

#include "device/slot_ring.h"
#include "offload/host_pipeline.h"
#include "zero/groups/engine_context.h"
#include "zero/storage/bucket_memory.h"

namespace zerorun {

// Stores reduced gradients when states are offloaded: the offloaded part of a bucket is copied to
// the host while backward goes on, so that the device keeps no more than the buckets in flight.
// Micro-steps are added up where the gradients are stored, as the reduction itself would.
class HostGradients {
 public:
  HostGradients(const EngineContext& context, std::span<const Bucket> buckets, PinnedArena& arena,
                HostPipeline& pipeline);

  // By bucket: memory for the offloaded part of its reduced gradient.
  std::span<const TensorView> memory() const { return memory_; }

  // The memory to reduce the bucket to; `stream` waits until it is free.
  TensorView output(const Bucket& bucket, const BucketGradients& gradients, Output output,
                    Stream& stream);
  // Brings what was reduced there on `stream` to `gradients`, or adds it to what they hold. The
  // event: `reduced` may be overwritten.
  Event take(const Bucket& bucket, BucketGradients& gradients, TensorView reduced, Output output,
             Stream& stream);

  // Bytes of the arena that the offloaded gradients take.
  static size_t host_nbytes(const Sharding& sharding, std::span<const Bucket> buckets);
  // Bytes of the device for reductions in flight.
  static size_t device_nbytes(const Sharding& sharding, std::span<const Bucket> buckets);

 private:
  const EngineContext& context_;
  HostPipeline& pipeline_;
  std::vector<TensorView> memory_;
  SlotRing slots_;  // empty where reduction is in place
};

}  // namespace zerorun
