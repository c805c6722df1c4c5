#include "zero/storage/bucket_memory.h"

#include <utility>

#include "zero/partition/sharding.h"

namespace zerorun {

namespace {

int64_t secondary_numel(const Sharding& sharding, const Bucket& bucket) {
  if (!sharding.place.has_secondary()) return 0;
  return bucket.layout.padded_numel() / sharding.place.secondary_ranks;
}

// Takes `numel` elements from the front of `bytes`. Shards are multiples of kNormBlock elements, so
// what follows is aligned for every dtype.
TensorView take(TensorView& bytes, int64_t numel, DType dtype) {
  const TensorView taken{bytes.data, numel, dtype};
  const auto nbytes = static_cast<int64_t>(taken.nbytes());
  bytes = bytes.slice(nbytes, bytes.numel - nbytes);
  return taken;
}

}  // namespace

BucketSizes sizes_of(const Sharding& sharding, std::span<const Bucket> buckets,
                     std::optional<int> ranks) {
  BucketSizes sizes;
  for (const Bucket& bucket : buckets) {
    if (ranks && bucket.plan.ranks != *ranks) continue;
    const auto element = static_cast<int64_t>(size_of(bucket.dtype));
    if (!bucket.plan.shard_params) {
      sizes.replicated += bucket.full_nbytes();
      if (bucket.quantized_gather) sizes.replicated += bucket.layout.shard_numel * element;
    } else if (!bucket.moves_params) {
      sizes.sharded += bucket.layout.shard_numel * element;
    }
    if (bucket.plan.shard_params) sizes.secondary += secondary_numel(sharding, bucket) * element;
    if (!bucket.plan.trainable) continue;
    if (!sharding.policy.shard_grads) sizes.gradients += bucket.layout.padded_numel();
    if (!reduces_in_place(sharding)) sizes.reduced += bucket.stored.host_from;
  }
  return sizes;
}

BucketMemory::BucketMemory(const EngineContext& context, std::span<Bucket> buckets)
    : context_(context) {
  for (int ranks = 0; ranks <= static_cast<int>(context.sharding.parts.size()); ++ranks) {
    const BucketSizes sizes = sizes_of(context.sharding, buckets, ranks);
    place_replicated(buckets, sizes.replicated, ranks);
    place_sharded(buckets, sizes.sharded, ranks);
    if (ranks == 0) place_secondary(buckets, sizes.secondary);
    place_gradients(buckets, sizes, ranks);
  }
}

TensorView BucketMemory::share(int64_t nbytes, Sharing sharing, MemoryCategory category,
                               Communicator& ranks) {
  if (nbytes == 0) return {};
  Buffer memory =
      allocate_shared(context_.device, ranks, static_cast<size_t>(nbytes), sharing, category);
  if (!memory) return {};
  buffers_.push_back(std::move(memory));
  return view_of(buffers_.back(), DType::uint8, nbytes);
}

void BucketMemory::place_replicated(std::span<Bucket> buckets, int64_t total, int ranks) {
  TensorView arena = share(total, Sharing::per_rank_on_write, MemoryCategory::parameters,
                           context_.groups.shards(ranks));
  for (Bucket& bucket : buckets) {
    if (bucket.plan.shard_params || bucket.plan.ranks != ranks) continue;
    BucketParameters& memory = bucket.params;
    memory.full = take(arena, bucket.layout.padded_numel(), bucket.dtype);
    const int64_t numel = bucket.layout.shard_numel;
    memory.shard = bucket.quantized_gather ? take(arena, numel, bucket.dtype)
                                           : memory.full.slice(bucket.owned_begin, numel);
    memory.stored = context_.sharding.policy.shard_state ? memory.shard : memory.full;
  }
}

void BucketMemory::place_sharded(std::span<Bucket> buckets, int64_t total, int ranks) {
  if (total == 0) return;
  const int shards = context_.sharding.place_of(ranks).shard_ranks;
  const bool on_host = context_.sharding.offload.param.device != OffloadDevice::none;
  const MemoryCategory category = on_host ? MemoryCategory::pinned : MemoryCategory::parameters;
  TensorView arena;
  // All or none: those that are gathered need one order among all collectives.
  const bool one_host =
      context_.groups.shards().reads_peers() && context_.groups.shards(ranks).reads_peers();
  // Quantized gathers and those of hpZ write to memory of their rank. If they are on,
  // other groups of this rank's job span hosts.
  if (context_.sharding.share_parameters && one_host &&
      zeropp_keys(context_.sharding.zero).empty()) {
    arena = share(total * shards, Sharing::per_host, category, context_.groups.gathers(ranks));
  }
  const bool resident = arena.data != nullptr;
  if (!resident) {
    arena = share(total, Sharing::per_rank_on_write, category, context_.groups.gathers(ranks));
  }
  for (Bucket& bucket : buckets) {
    if (!bucket.plan.shard_params || bucket.moves_params || bucket.plan.ranks != ranks) continue;
    BucketParameters& memory = bucket.params;
    const int64_t shard_numel = bucket.layout.shard_numel;
    memory.resident = resident;
    if (resident) {
      memory.full = take(arena, shard_numel * shards, bucket.dtype);
      memory.shard = memory.full.slice(bucket.owned_begin, shard_numel);
    } else {
      memory.shard = take(arena, shard_numel, bucket.dtype);
    }
    memory.stored = memory.shard;
  }
}

// From the group that gathers from it, which may read it in place.
void BucketMemory::place_secondary(std::span<Bucket> buckets, int64_t total) {
  if (total == 0) return;
  TensorView arena =
      share(total, Sharing::per_rank, MemoryCategory::parameters, *context_.groups.secondary_group);
  for (Bucket& bucket : buckets) {
    if (!bucket.plan.shard_params) continue;
    bucket.params.secondary = take(arena, secondary_numel(context_.sharding, bucket), bucket.dtype);
  }
}

void BucketMemory::place_gradients(std::span<Bucket> buckets, const BucketSizes& sizes, int ranks) {
  const TensorView shape{nullptr, sizes.gradients, context_.sharding.precision.param_dtype};
  TensorView full_arena = share(static_cast<int64_t>(shape.nbytes()), Sharing::per_rank,
                                MemoryCategory::gradients, context_.groups.shards(ranks));
  TensorView reduced_arena{nullptr, sizes.reduced, context_.sharding.precision.accum_dtype};
  if (sizes.reduced > 0) {
    buffers_.push_back(context_.device.allocate(reduced_arena.nbytes(), MemoryCategory::gradients));
    reduced_arena.data = buffers_.back().data();
  }
  int64_t reduced_cursor = 0;
  for (Bucket& bucket : buckets) {
    if (!bucket.plan.trainable || bucket.plan.ranks != ranks) continue;
    BucketGradients& memory = bucket.grads;
    if (!context_.sharding.policy.shard_grads) {
      memory.full =
          take(full_arena, bucket.layout.padded_numel(), context_.sharding.precision.param_dtype);
    }
    if (reduces_in_place(context_.sharding)) {
      memory.reduced = memory.full.slice(bucket.stored.begin, bucket.stored.numel);
    } else {
      memory.reduced = reduced_arena.slice(reduced_cursor, bucket.stored.host_from);
      reduced_cursor += bucket.stored.host_from;
    }
  }
}

}  // namespace zerorun
