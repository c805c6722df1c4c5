#pragma once

#include <span>
#include <vector>

#include "zero/groups/engine_context.h"
#include "zero/storage/bucket_memory.h"

namespace zerorun {

// Makes what a rank wrote to its shards visible to all ranks.
//
// At stages 1 and 2 the gathers of a step run on while the next forward begins: the device's inline
// stream waits for that of a bucket where it first uses one of its parameters.
class UpdatedParameters {
 public:
  UpdatedParameters(const EngineContext& context, std::span<const Bucket> buckets,
                    BucketMemory& memory)
      : context_(context), buckets_(buckets), memory_(memory), gathered_(buckets.size()) {}

  // After what the inline stream was given so far.
  void gather(const Bucket& bucket, Stream& stream);
  // Where peers read shards from where they lie, all ranks have to have written them.
  void end(Stream& stream);
  // The same, and the caller waits until all is there.
  void finish(Stream& stream);

  // What the inline stream is given from now on finds the bucket's parameters, and so does the
  // caller where it reads the device's memory.
  void wait(const Bucket& bucket) const;
  void wait() const;

 private:
  const EngineContext& context_;
  const std::span<const Bucket> buckets_;
  BucketMemory& memory_;
  mutable std::vector<Event> gathered_;  // by bucket; empty: nobody needs to wait
};

}  // namespace zerorun
