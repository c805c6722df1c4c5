#pragma once

#include <span>

#include "zero/groups/engine_context.h"
#include "zero/partition/bucket.h"
#include "zerorun/device.h"

namespace zerorun {

// Gathers parameters in 8 bits instead of 16 or 32 (qwZ of ZeRO++, arXiv 2306.10209;
// device/quantized.h has the format): sharded ones before they are used, and at stages 1 and 2
// those that a step has updated. Each rank quantizes its shard, and all ranks, the owner included,
// compute with the decoded values. Masters and shards keep their values.
class QuantizedGather {
 public:
  static constexpr int kBits = 8;
  // The bytes that a QuantizedGather allocates: those of the module, or below stage 3 of the
  // bucket, that needs most.
  static int64_t nbytes(std::span<const Bucket> buckets);

  // Places BucketParameters::wire.
  QuantizedGather(const EngineContext& context, std::span<Bucket> buckets);

  // start() starts the gather of one bucket, of which this rank has `shard`; decode() writes the
  // decoded values to `full`. The buckets of a module are all started first and then all decoded,
  // on the same stream, and so is a bucket below stage 3 before the next one.
  void start(const Bucket& bucket, TensorView shard, Stream& stream);
  void decode(const Bucket& bucket, TensorView full, Stream& stream) const;
  // Returns the decoded values of `numel` elements of this rank's shard from `begin` in the bucket
  // on, both whole blocks of kQuantizedBlock. Not while a gather runs.
  Buffer decoded(const Bucket& bucket, int64_t begin, int64_t numel, Stream& stream) const;

 private:
  // Returns the bytes of `part`, whole blocks from `begin` in the bucket on, in their place.
  TensorView encode(const Bucket& bucket, int64_t begin, TensorView part, Stream& stream) const;

  const EngineContext& context_;
  Buffer memory_;
};

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
