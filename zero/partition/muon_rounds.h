#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "zero/partition/bucket.h"
#include "zero/partition/sharding.h"
#include "zerorun/communicator.h"

namespace zerorun {

// This rank's part of the work on a bucket of Muon's matrices. Each matrix has one owner among the
// ranks of the shard group, which orthogonalizes it. Owners ascend with positions in the bucket, so
// a rank's matrices are consecutive. Positions of memory count in the direction of a round.
struct MuonShare {
  int bucket = 0;
  int64_t stored = 0;  // where the direction of the stored range is
  int64_t owned = 0;   // where the owned matrices are
  int64_t begin = 0;   // of the owned matrices, in the bucket
  int64_t numel = 0;
  // From shards to owners, and back. Null if each rank stores the whole bucket and owns it all.
  std::shared_ptr<const Cuts> to_owners{};
  std::shared_ptr<const Cuts> to_shards{};
};

// Buckets that are orthogonalized together. About as many as there are ranks, so that all of them
// have work even if each bucket has one matrix.
struct MuonRound {
  std::vector<MuonShare> shares;
  int64_t numel = 0;  // of the direction; the same on all ranks
};

// All rounds, in the order of the update. The ranks of a shard group have the same.
std::vector<MuonRound> muon_rounds(const Sharding& sharding, std::span<const Bucket> buckets);

}  // namespace zerorun
