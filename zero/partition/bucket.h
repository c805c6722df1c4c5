#pragma once

#include <span>
#include <string>
#include <vector>

#include "zero/partition/chunks.h"
#include "zero/partition/partition.h"
#include "zero/partition/sharding.h"

namespace zerorun {

// The elements of a bucket for which this rank stores optimizer states and the reduced gradient:
// its shard from stage 1 on, the whole bucket at stage 0.
struct StoredRange {
  int64_t begin = 0;  // within the bucket
  int64_t numel = 0;
  bool offloaded = false;  // a part is on the host, of equal size on all ranks up to rounding
  int64_t host_from = 0;   // first element of that part, within the range; numel: it is empty
};

// A group of parameters that communicate together: their layout in flat memory and this rank's
// shard of it. Constant, and equal on all ranks except for the ranges. BucketMemory owns the
// memory.
struct Bucket {
  int index = 0;
  std::string label;  // "bucket 3 (h.0.attn.weight .. h.2.mlp.bias)"
  BucketPlan plan;
  BucketLayout layout;
  DType dtype = DType::fp32;  // of the parameters: the engine's, except for some frozen ones
  int64_t owned_begin = 0;    // begin of this rank's shard, of layout.shard_numel elements
  bool owned = true;          // this rank owns its shard; else the rank of another replica does
  StoredRange stored;
  // This rank's parameter shard is stored off the device and is copied chunk by chunk.
  bool moves_params = false;
  std::vector<Chunk> chunks;  // of the stored range

  // Bytes of the full bucket, including padding.
  int64_t full_nbytes() const {
    return layout.padded_numel() * static_cast<int64_t>(size_of(dtype));
  }
  // The intervals of parameters within `numel` elements of the stored range, from `begin` on, that
  // are in this rank's shard. (At stage 0 the stored range is larger than the shard.)
  std::vector<Interval> shard_intervals(int64_t begin, int64_t numel) const;
  // Those of these intervals that this rank owns. A sum over ranks counts each element on its owner
  // only.
  std::vector<Interval> owned_intervals(int64_t begin, int64_t numel) const {
    return owned ? shard_intervals(begin, numel) : std::vector<Interval>();
  }
};

std::vector<Bucket> make_buckets(const Sharding& sharding, std::span<const int64_t> numels,
                                 std::span<const ModuleId> modules);

}  // namespace zerorun
