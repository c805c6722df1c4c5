#include "zero/storage/direction.h"

#include <algorithm>

#include "zero/partition/model_spec.h"
#include "zero/partition/muon_rounds.h"
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
    for (const SizedParameter& parameter : bucket.plan.parameters) {
      const ParameterSpec& spec = sharding.spec(parameter.parameter);
      if (spec.shape.size() != 2) continue;  // MuonStep refuses it
      const MuonMatrices matrices = muon_matrices(spec);
      size.work = std::max(size.work, orthogonalize_work(matrices.rows, matrices.cols));
    }
  }
  for (const MuonRound& round : muon_rounds(sharding, buckets)) {
    size.numel = std::max(size.numel, round.numel);
  }
  return size;
}

DirectionMemory::DirectionMemory(Device& device, Communicator& shards, DirectionSize size) {
  if (size.numel == 0) return;
  const size_t nbytes = static_cast<size_t>(size.numel) * sizeof(float);
  direction_ = allocate_shared(device, shards, nbytes, Sharing::per_rank, MemoryCategory::buckets);
  work_ = device.allocate(static_cast<size_t>(size.work) * sizeof(float), MemoryCategory::buckets);
}

}  // namespace zerorun
