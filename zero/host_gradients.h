#pragma once

#include <cstdint>
#include <vector>

#include "offload/host_pipeline.h"
#include "zero/bucket.h"

namespace zerorun {

// Takes reduced gradients to where they rest when states are offloaded: the offloaded part of a
// bucket to the host while backward goes on, so that the device holds no more than the buckets in
// flight. Micro-steps are added up where they rest, as the reduction itself would.
class HostGradients {
 public:
  // Sets host_reduced of the offloaded buckets.
  HostGradients(const EngineContext& context, std::vector<Bucket>& buckets, PinnedArena& arena,
                HostPipeline& pipeline);

  // Where to reduce the bucket to; `stream` waits until that is free.
  TensorView output(const Bucket& bucket, Output output, Stream& stream);
  // What was reduced there on `stream` goes to rest. Returns when `reduced` may be overwritten.
  Event take(Bucket& bucket, TensorView reduced, Output output, Stream& stream);

  // Bytes of the arena that the offloaded gradients take.
  static size_t host_nbytes(const Sharding& sharding, std::span<const Bucket> buckets);
  // Bytes of the device for reductions in flight.
  static size_t device_nbytes(const Sharding& sharding, std::span<const Bucket> buckets);

 private:
  struct Slot {
    Buffer memory;
    Event free;
  };

  const EngineContext& context_;
  HostPipeline& pipeline_;
  std::vector<Slot> slots_;
  size_t current_ = 0;
};

}  // namespace zerorun
