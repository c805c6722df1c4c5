#pragma once

#include <optional>
#include <span>
#include <vector>

#include "zero/groups/engine_context.h"
#include "zero/partition/bucket.h"
#include "zerorun/tensor.h"

namespace zerorun {

// The sizes of all buckets' memory on one rank, in bytes for parameters and in elements for
// gradients.
struct BucketSizes {
  int64_t replicated = 0;  // parameters that every rank stores in full, and shards apart from them
  int64_t sharded = 0;     // this rank's shards of those that are gathered where they are stored
  int64_t secondary = 0;   // this rank's part of the hpZ partition
  int64_t gradients = 0;   // BucketGradients::full
  int64_t reduced = 0;     // BucketGradients::reduced, unless it is a part of `full`
};
// The sizes of all buckets, or of those with the given BucketPlan::ranks.
BucketSizes sizes_of(const Sharding& sharding, std::span<const Bucket> buckets,
                     std::optional<int> ranks = std::nullopt);

// Allocates and owns the memory of the buckets' parameters, and of their gradients outside of the
// pool.
class BucketMemory {
 public:
  // Collective.
  BucketMemory(const EngineContext& context, std::span<Bucket> buckets);

 private:
  // Allocate memory for the buckets that are held by the ranks `ranks` (BucketPlan::ranks).
  void place_replicated(std::span<Bucket> buckets, int64_t total, int ranks);
  void place_sharded(std::span<Bucket> buckets, int64_t total, int ranks);
  void place_secondary(std::span<Bucket> buckets, int64_t total);
  void place_gradients(std::span<Bucket> buckets, const BucketSizes& sizes, int ranks);
  // Memory of allocate_shared(), empty without bytes.
  TensorView share(int64_t nbytes, Sharing sharing, MemoryCategory category, Communicator& ranks);

  const EngineContext& context_;
  std::vector<Buffer> buffers_;
};

}  // namespace zerorun
