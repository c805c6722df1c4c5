#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "zerorun/config.h"
#include "zerorun/engine.h"

namespace zerorun {

// Pure arithmetic: which parameters share a bucket, where they are in it, and how it is cut into
// shards. There is no memory and no communication here.

// A parameter inside a bucket's flat buffer.
struct Placement {
  ParameterId parameter = 0;
  int64_t offset = 0;  // position of its first element in the bucket
  int64_t numel = 0;
};

// A contiguous part of one parameter.
struct Interval {
  ParameterId parameter = 0;
  int64_t begin = 0;   // first element within the parameter
  int64_t offset = 0;  // position of that element within the bucket
  int64_t numel = 0;
};

// The flat layout of a bucket, which is cut into `shards` shards of equal size, one for each of the
// ranks that share one copy of it.
//
// Shards are multiples of kNormBlock elements, and a parameter that spans several shards starts at
// such a multiple. So cuts are on the block grid of every parameter, and norms and hashes that are
// computed block by block do not depend on where shards are cut.
struct BucketLayout {
  std::vector<Placement> placements;  // ascending offsets
  int shards = 1;
  int64_t shard_numel = 0;

  int64_t padded_numel() const { return shard_numel * shards; }
  int64_t numel() const;  // without padding
  // The intervals of parameters inside [begin, end) of the bucket, without empty ones.
  std::vector<Interval> intervals(int64_t begin, int64_t end) const;
  std::vector<Interval> shard_intervals(int rank) const {
    return intervals(rank * shard_numel, (rank + 1) * shard_numel);
  }
};

constexpr int64_t nbytes_of(int64_t numel, DType dtype) {
  return numel * static_cast<int64_t>(size_of(dtype));
}

struct SizedParameter {
  ParameterId parameter = 0;
  int64_t numel = 0;
};

// Lays out parameters in a bucket. Every parameter starts at a multiple of `alignment`, which is 1
// or divides kNormBlock.
BucketLayout lay_out(std::span<const SizedParameter> parameters, int shards, int64_t alignment = 1);

// The parameters of one bucket.
struct BucketPlan {
  std::vector<SizedParameter> parameters;  // ascending ids
  bool trainable = true;
  bool use_muon = false;
  int ranks = 0;                 // ParameterSpec::ranks, the same for all
  std::optional<DType> dtype{};  // ParameterSpec::dtype, the same for all
  // Of matrices whose traffic is quantized. Vectors, such as biases, would lose more than matrices
  // and have few bytes to save.
  bool quantized = false;
  bool shard_params = false;  // sharded (stage 3): full only between gather and release
  ModuleId module = -1;       // of a bucket with shard_params
};

// Plans buckets in the order in which backward completes them. Sharded parameters have one bucket
// per module. All others (all parameters below stage 3, small ones at stage 3) fill buckets up to a
// size, from the last parameter to the first. `numels` and `modules` are indexed by parameter.
std::vector<BucketPlan> plan_buckets(std::span<const ParameterSpec> specs,
                                     std::span<const int64_t> numels,
                                     std::span<const ModuleId> modules, const ZeroConfig& zero);

// A contiguous part of the stored range of a bucket (Bucket::stored), the unit in which parameters
// and optimizer states are stored, moved and updated. Elements count from the begin of that range.
struct Chunk {
  int64_t begin = 0;
  int64_t end = 0;
  int index = 0;         // among the bucket's chunks
  bool on_host = false;  // its optimizer states are offloaded
  int state_index = -1;  // in the StateStore of the host or of the device; -1: frozen
  // Only for offloaded parameters (Bucket::moves_params).
  bool param_in_file = false;  // else in pinned memory
  int param_index = -1;        // in the StateStore of either
  int64_t numel() const { return end - begin; }
};

// The position nearest to `at` where chunks of the bucket may be cut: the start of a parameter, or
// a multiple of kNormBlock elements from it. It is the last such position at or before `at` but
// after `after`; if there is none, the first one after `at`.
int64_t cut_near(const BucketLayout& layout, int64_t at, int64_t after);

// Approximate numbers of parameter elements in a chunk, without padding.
struct ChunkSizes {
  int64_t device = 0;
  int64_t host = 0;
};
// Cuts elements [from, from + numel) of a bucket into chunks. Elements before `host_from` stay on
// the device; the others are offloaded to the host.
std::vector<Chunk> cut_chunks(const BucketLayout& layout, int64_t from, int64_t numel,
                              int64_t host_from, ChunkSizes sizes);

}  // namespace zerorun
