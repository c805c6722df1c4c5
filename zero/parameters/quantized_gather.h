#pragma once

#include <span>
#include <vector>

#include "zero/groups/engine_context.h"
#include "zero/partition/bucket.h"
#include "zerorun/device.h"

namespace zerorun {

// Gathers of parameters in 8 bits instead of 16 or 32 (qwZ of ZeRO++; device/quantized.h has the
// format). Each rank quantizes its shard, and all ranks, the owner included, use what that decodes
// to: they compute with the same bits. Masters and shards stay as they are.
class QuantizedGather {
 public:
  static constexpr int kBits = 8;
  // True when gathers of the bucket are in fewer bits.
  static bool takes(const Sharding& sharding, const Bucket& bucket);
  // Bytes of its memory: for all buckets of a module, that has most.
  static int64_t nbytes(const Sharding& sharding, std::span<const Bucket> buckets);

  QuantizedGather(const EngineContext& context, std::span<const Bucket> buckets);

  // Starts the gather of a bucket whose shard is `shard`. Buckets of one module are started
  // together, and then decoded together, on the same stream.
  void start(const Bucket& bucket, TensorView shard, Stream& stream);
  void decode(const Bucket& bucket, TensorView full, Stream& stream) const;

 private:
  TensorView wire(const Bucket& bucket) const;

  const EngineContext& context_;
  Buffer memory_;
  std::vector<int64_t> places_;  // by bucket, in the memory
};

}  // namespace zerorun
