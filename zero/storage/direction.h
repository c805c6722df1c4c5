#pragma once

#include <cstdint>
#include <span>

#include "optim/optimizer.h"
#include "zero/groups/engine_context.h"
#include "zero/partition/bucket.h"

namespace zerorun {

// The fp32 elements that optimizers with two passes (Lamb, Muon) store between the passes, for one
// chunk or round (MuonRound) at a time.
struct DirectionSize {
  int64_t numel = 0;
  int64_t work = 0;  // workspace of Muon's orthogonalization
};
DirectionSize direction_size(const Sharding& sharding, std::span<const Optimizer> rules,
                             std::span<const Bucket> buckets);

// The memory of that size. It holds Lamb's update direction of a chunk or Muon's of a round.
class DirectionMemory {
 public:
  // Collective.
  DirectionMemory(Device& device, Communicator& shards, DirectionSize size);

  TensorView direction(int64_t numel, int64_t begin = 0) const {
    return view_of(direction_, DType::fp32, numel, static_cast<size_t>(begin) * sizeof(float));
  }
  TensorView work(int64_t numel) const { return view_of(work_, DType::fp32, numel); }

 private:
  Buffer direction_;
  Buffer work_;
};

}  // namespace zerorun
