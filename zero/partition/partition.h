#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "zerorun/config.h"
#include "zerorun/engine.h"

namespace zerorun {

// Pure arithmetic: which parameters share a bucket, where they lie in it, and which part of it is
// whose. No memory and no communication here.

// A parameter inside a bucket's flat buffer.
struct Placement {
  ParameterId parameter = 0;
  int64_t offset = 0;  // of its first element in the bucket
  int64_t numel = 0;
};

// A contiguous part of one parameter.
struct Interval {
  ParameterId parameter = 0;
  int64_t begin = 0;   // first element within the parameter
  int64_t offset = 0;  // of that element within the bucket
  int64_t numel = 0;
};

// Flat layout of a bucket that is cut into shards of equal size, one for each of the ranks that
// share a copy of it.
//
// Shards are multiples of kNormBlock elements, and a parameter that spans shards starts at such a
// multiple: cuts lie on the chunk grid of every parameter, so norms and hashes that work chunk by
// chunk do not depend on the cut.
struct BucketLayout {
  std::vector<Placement> placements;  // ascending offsets
  int shards = 1;
  int64_t shard_numel = 0;

  int64_t padded_numel() const { return shard_numel * shards; }
  int64_t numel() const;  // without padding
  // The parameters' parts inside [begin, end) of the bucket; empty parts left out.
  std::vector<Interval> intervals(int64_t begin, int64_t end) const;
  std::vector<Interval> shard_intervals(int rank) const {
    return intervals(rank * shard_numel, (rank + 1) * shard_numel);
  }
};

struct SizedParameter {
  ParameterId parameter = 0;
  int64_t numel = 0;
};

// Every parameter starts at a multiple of `alignment`, which divides kNormBlock or is 1.
BucketLayout lay_out(std::span<const SizedParameter> parameters, int shards, int64_t alignment = 1);

// Parameters that communicate together.
struct BucketPlan {
  std::vector<SizedParameter> parameters;  // ascending ids
  bool trainable = true;
  bool use_muon = false;
  int ranks = 0;                 // ParameterSpec::ranks of all
  std::optional<DType> dtype{};  // ParameterSpec::dtype of all
  bool shard_params = false;     // full only between gather and release
  ModuleId module = -1;          // of a bucket with shard_params
};

// Buckets in the order in which backward completes them. Sharded parameters: one bucket per module.
// The rest (all of them below stage 3; small ones at stage 3): filled from the last parameter to
// the first up to a size. `numels` and `modules` are indexed by parameter.
std::vector<BucketPlan> plan_buckets(std::span<const ParameterSpec> specs,
                                     std::span<const int64_t> numels,
                                     std::span<const ModuleId> modules, const ZeroConfig& zero);

}  // namespace zerorun
