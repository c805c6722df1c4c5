#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "zero/groups/engine_context.h"
#include "zero/partition/bucket.h"
#include "zerorun/tensor.h"

namespace zerorun {

// The memory of a bucket's parameters, in Bucket::dtype.
struct BucketParameters {
  TensorView shard;  // without data if Bucket::moves_params
  TensorView full;   // without data while a sharded bucket is released
  // This rank's part of the second copy (hpZ); without data if there is none.
  TensorView secondary;
  bool resident = false;  // sharded, but always full: all shards are in this host's memory
};

// The memory of a bucket's gradients outside of the pool; empty if it is frozen.
struct BucketGradients {
  TensorView full;  // where backward writes below stage 2
  // The stored range of the reduced gradient: `reduced` has the elements before
  // StoredRange::host_from, `host_reduced` the others.
  TensorView reduced;
  TensorView host_reduced;
  Event host_ready;  // host_reduced is complete

  // A view of `numel` elements of the stored range from `begin` on. All of them are before
  // host_from, or none.
  TensorView reduced_part(const Bucket& bucket, int64_t begin, int64_t numel) const {
    const int64_t host_from = bucket.stored.host_from;
    return begin < host_from ? reduced.slice(begin, numel)
                             : host_reduced.slice(begin - host_from, numel);
  }
};

// The sizes of all buckets' memory on one rank, in bytes for parameters and in elements for
// gradients.
struct BucketSizes {
  int64_t replicated = 0;  // parameters that every rank stores in full
  int64_t sharded = 0;     // this rank's shards of those that are gathered where they are stored
  int64_t secondary = 0;   // this rank's part of the second copy
  int64_t gradients = 0;   // BucketGradients::full
  int64_t reduced = 0;     // BucketGradients::reduced, unless it is a part of `full`
};
// The sizes of all buckets, or of those with the given BucketPlan::ranks.
BucketSizes sizes_of(const Sharding& sharding, std::span<const Bucket> buckets,
                     std::optional<int> ranks = std::nullopt);

// Owns the memory of the buckets' parameters, and of their gradients outside of the pool.
class BucketMemory {
 public:
  // Collective. `host_gradients`: by bucket, memory for the offloaded part of the reduced gradient;
  // empty if nothing is offloaded.
  BucketMemory(const EngineContext& context, std::span<const Bucket> buckets,
               std::span<const TensorView> host_gradients);

  // The place of a parameter in the full memory of its bucket. Not for tied parameters.
  struct Place {
    int bucket = 0;
    int64_t offset = 0;
    int64_t numel = 0;
  };
  const Place& place_of(ParameterId id) const { return places_.at(static_cast<size_t>(id)); }
  BucketParameters& parameters(const Bucket& bucket) { return parameters_[at(bucket)]; }
  const BucketParameters& parameters(const Bucket& bucket) const { return parameters_[at(bucket)]; }
  // The parameters of a chunk. Not for buckets with moves_params.
  TensorView parameters(const Bucket& bucket, const Chunk& chunk) const;
  BucketGradients& gradients(const Bucket& bucket) { return gradients_[at(bucket)]; }
  const BucketGradients& gradients(const Bucket& bucket) const { return gradients_[at(bucket)]; }

 private:
  static size_t at(const Bucket& bucket) { return static_cast<size_t>(bucket.index); }
  // Allocate memory for the buckets that are held by the ranks `ranks` (BucketPlan::ranks).
  void place_replicated(std::span<const Bucket> buckets, int64_t total, int ranks);
  void place_sharded(std::span<const Bucket> buckets, int64_t total, int ranks);
  void place_secondary(std::span<const Bucket> buckets, int64_t total);
  void place_gradients(std::span<const Bucket> buckets, const BucketSizes& sizes, int ranks);
  // Allocates memory that the ranks share; nullopt if the transport does not support it.
  std::optional<TensorView> share(int64_t nbytes, Sharing sharing, MemoryCategory category,
                                  Communicator& ranks);
  TensorView share_per_rank(int64_t nbytes, MemoryCategory category, Communicator& ranks);

  const EngineContext& context_;
  std::vector<Place> places_;                 // by parameter
  std::vector<BucketParameters> parameters_;  // by bucket
  std::vector<BucketGradients> gradients_;    // by bucket
  std::vector<Buffer> buffers_;
  std::vector<std::shared_ptr<void>> ledger_;
};

}  // namespace zerorun
