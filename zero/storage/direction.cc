#include "zero/storage/direction.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/check.h"
#include "zero/storage/chunk_storage.h"

namespace zerorun {

DirectionSize direction_size(const Sharding& sharding, std::span<const Optimizer> rules,
                             std::span<const Bucket> buckets) {
  DirectionSize size;
  for (const Bucket& bucket : buckets) {
    if (!bucket.plan.trainable) continue;
    const Optimizer::Passes passes = rule_of(rules, bucket.plan.use_muon).passes();
    if (passes == Optimizer::Passes::lamb) size.numel = std::max(size.numel, bucket.stored.numel);
    if (passes != Optimizer::Passes::muon) continue;
    size.numel = std::max(size.numel, bucket.layout.padded_numel());
    for (const SizedParameter& parameter : bucket.plan.parameters) {
      const auto& shape = sharding.specs[static_cast<size_t>(parameter.parameter)].shape;
      if (shape.size() != 2) continue;  // MuonStep refuses it
      size.work = std::max(size.work, orthogonalize_work(shape[0], shape[1]));
    }
  }
  return size;
}

DirectionMemory::DirectionMemory(const EngineContext& context, DirectionSize size) {
  if (size.numel == 0) return;
  const size_t nbytes = static_cast<size_t>(size.numel) * sizeof(float);
  std::optional<Buffer> direction = context.groups.shards().allocate(nbytes, Sharing::per_rank);
  ZR_CHECK(direction, "transport {} gives no per-rank memory", context.groups.shards().transport());
  ledger_ = context.device.account(nbytes, MemoryCategory::buckets);
  direction_ = std::move(*direction);
  work_ = context.device.allocate(static_cast<size_t>(size.work) * sizeof(float),
                                  MemoryCategory::buckets);
}

}  // namespace zerorun
