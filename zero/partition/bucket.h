#pragma once

#include <span>
#include <string>
#include <vector>

#include "zero/partition/chunks.h"
#include "zero/partition/partition.h"
#include "zero/partition/sharding.h"

namespace zerorun {

// The elements of a bucket whose optimizer states and reduced gradient this rank stores: its shard,
// or the whole bucket at stage 0.
struct StoredRange {
  int64_t begin = 0;  // within the bucket
  int64_t numel = 0;
  bool offloaded = false;  // a part of it, the same on all ranks but for rounding, is on the host
  int64_t host_from = 0;   // first element of that part, within the range; numel when it is empty
};

// Parameters that communicate together: how they lie in flat memory and which part of it is whose.
// Constant, and the same on all ranks but for the ranges. Its memory is in BucketMemory.
struct Bucket {
  int index = 0;
  std::string label;  // "bucket 3 (h.0.attn.weight .. h.2.mlp.bias)"
  BucketPlan plan;
  BucketLayout layout;
  DType dtype = DType::fp32;  // of the parameters: the engine's, but for some that are frozen
  int64_t owned_begin = 0;    // of this rank's shard, layout.shard_numel elements
  bool owned = true;          // this rank answers for its shard; else another replica does
  StoredRange stored;
  // True where this rank's shard is stored off the device and moves chunk by chunk.
  bool moves_params = false;
  std::vector<Chunk> chunks;  // of the stored range

  // Bytes of all of it with its padding.
  int64_t full_nbytes() const {
    return layout.padded_numel() * static_cast<int64_t>(size_of(dtype));
  }
  // Parts of parameters in `numel` elements of the stored range, from `begin` on, that are in this
  // rank's shard: at stage 0 each rank stores all.
  std::vector<Interval> shard_intervals(int64_t begin, int64_t numel) const;
  // The intervals that this rank answers for, and alone adds to a sum over ranks.
  std::vector<Interval> owned_intervals(int64_t begin, int64_t numel) const {
    return owned ? shard_intervals(begin, numel) : std::vector<Interval>();
  }
};

std::vector<Bucket> make_buckets(const Sharding& sharding, std::span<const int64_t> numels,
                                 std::span<const ModuleId> modules);

}  // namespace zerorun
