#pragma once

#include <span>

#include "zero/groups/engine_context.h"
#include "zero/parameters/quantized_gather.h"
#include "zero/partition/bucket.h"

namespace zerorun {

// Makes updated parameter shards visible to all ranks after a step: it gathers the parameters that
// ranks store in full (stages 1 and 2, small parameters at stage 3). Sharded parameters are
// gathered when they are used.
//
// At stages 1 and 2 these gathers overlap with the next forward: the inline stream waits for the
// gather of a bucket when one of its parameters is first used.
class UpdatedParameters {
 public:
  UpdatedParameters(const EngineContext& context, std::span<Bucket> buckets,
                    QuantizedGather& quantized)
      : context_(context), buckets_(buckets), quantized_(quantized) {}

  // Starts the gather of a bucket, after the work submitted to the inline stream. Does nothing for
  // sharded parameters.
  void gather(const Bucket& bucket, Stream& stream);
  // Called after all buckets of a step. With sharded parameters, later work of the inline stream
  // comes after a barrier of all ranks, since peers read shards in place.
  void end(Stream& stream);
  // As end(), and waits until all gathers are complete.
  void finish(Stream& stream);

  // Make later work of the inline stream wait for the gather of the bucket, or of all buckets; so
  // does the caller if host code can read the device's memory.
  void wait(const Bucket& bucket) const;
  void wait() const;
  // See EngineHooks::decoded_part; empty for this rank's part of no element.
  Buffer decoded_part(const Bucket& bucket, ParameterId id) const;

 private:
  const EngineContext& context_;
  const std::span<Bucket> buckets_;
  QuantizedGather& quantized_;
};

}  // namespace zerorun
