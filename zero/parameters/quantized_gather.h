#pragma once

#include <span>

#include "zero/groups/engine_context.h"
#include "zero/partition/bucket.h"
#include "zerorun/device.h"

namespace zerorun {

// Gathers parameters in 8 bits instead of 16 or 32 (qwZ of ZeRO++, arXiv 2306.10209;
// device/quantized.h has the format). Each rank quantizes its shard, and all ranks, the owner
// included, compute with the decoded values. Masters and shards keep their values.
class QuantizedGather {
 public:
  static constexpr int kBits = 8;
  // True if gathers of the bucket are quantized.
  static bool takes(const Sharding& sharding, const Bucket& bucket);
  // The bytes that a QuantizedGather allocates: those of the module that needs most.
  static int64_t nbytes(const Sharding& sharding, std::span<const Bucket> buckets);

  // Places BucketParameters::wire.
  QuantizedGather(const EngineContext& context, std::span<Bucket> buckets);

  // start() starts the gather of one bucket, of which this rank has `shard`; decode() writes the
  // decoded values to `full`. The buckets of a module are all started first and then all decoded,
  // on the same stream.
  void start(const Bucket& bucket, TensorView shard, Stream& stream);
  void decode(const Bucket& bucket, TensorView full, Stream& stream) const;

 private:
  const EngineContext& context_;
  Buffer memory_;
};

}  // namespace zerorun
