#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "optim/optimizer.h"
#include "zero/groups/engine_context.h"
#include "zero/partition/bucket.h"

namespace zerorun {

// Elements in fp32 that rules with two passes keep between them, for one bucket at a time.
struct DirectionSize {
  int64_t numel = 0;
  int64_t work = 0;  // of orthogonalization
};
DirectionSize direction_size(const Sharding& sharding, std::span<const Optimizer> rules,
                             std::span<const Bucket> buckets);

// Memory of that size: Lamb's direction of a chunk, or Muon's of a whole bucket.
class DirectionMemory {
 public:
  // Collective.
  DirectionMemory(const EngineContext& context, DirectionSize size);

  TensorView direction(int64_t numel) const { return view_of(direction_, DType::fp32, numel); }
  TensorView work(int64_t numel) const { return view_of(work_, DType::fp32, numel); }

 private:
  Buffer direction_;
  std::shared_ptr<void> ledger_;
  Buffer work_;
};

}  // namespace zerorun
