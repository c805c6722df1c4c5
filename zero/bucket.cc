#include "zero/bucket.h"

#include <utility>

#include "core/check.h"

namespace zerorun {

std::vector<Bucket> make_buckets(const EngineContext& context, std::span<const int64_t> numels,
                                 std::span<const ModuleId> modules) {
  std::vector<Bucket> buckets;
  for (BucketPlan& plan : plan_buckets(context.specs, numels, modules, context.zero)) {
    Bucket bucket;
    bucket.index = static_cast<int>(buckets.size());
    bucket.layout =
        lay_out(plan.parameters, context.comm.world_size(), context.parameter_alignment);
    const auto name = [&](const SizedParameter& parameter) -> const std::string& {
      return context.specs[static_cast<size_t>(parameter.parameter)].name;
    };
    bucket.label = fmt::format("bucket {} ({} .. {})", bucket.index, name(plan.parameters.front()),
                               name(plan.parameters.back()));
    bucket.plan = std::move(plan);
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

bool reduces_in_place(const EngineContext& context) {
  return !context.policy.shard_grads && context.accumulation_steps == 1 &&
         context.comm_dtype == context.param_dtype && context.accum_dtype == context.param_dtype;
}

BucketMemory::BucketMemory(const EngineContext& context, std::vector<Bucket>& buckets)
    : context_(context) {
  place_replicated(buckets);
  place_sharded(buckets);
  place_gradients(buckets);
}

std::optional<TensorView> BucketMemory::share(int64_t numel, Sharing sharing,
                                              MemoryCategory category) {
  const size_t nbytes = static_cast<size_t>(numel) * size_of(context_.param_dtype);
  std::optional<Buffer> buffer = context_.comm.allocate(nbytes, sharing);
  if (!buffer) return std::nullopt;
  const auto ranks = static_cast<size_t>(context_.comm.world_size());
  ledger_.push_back(
      context_.device.account(sharing == Sharing::per_host ? nbytes / ranks : nbytes, category));
  buffers_.push_back(std::move(*buffer));
  return view_of(buffers_.back(), context_.param_dtype, numel);
}

void BucketMemory::place_replicated(std::vector<Bucket>& buckets) {
  int64_t total = 0;
  for (const Bucket& bucket : buckets) {
    if (!bucket.plan.shard_params) total += bucket.layout.padded_numel();
  }
  if (total == 0) return;
  const std::optional<TensorView> slab =
      share(total, Sharing::per_rank, MemoryCategory::parameters);
  ZR_CHECK(slab, "transport {} gives no per-rank memory", context_.comm.transport());
  int64_t cursor = 0;
  for (Bucket& bucket : buckets) {
    if (bucket.plan.shard_params) continue;
    const BucketLayout& layout = bucket.layout;
    bucket.param_full = slab->slice(cursor, layout.padded_numel());
    bucket.param_shard =
        bucket.param_full.slice(context_.comm.rank() * layout.shard_numel, layout.shard_numel);
    cursor += layout.padded_numel();
  }
}

void BucketMemory::place_sharded(std::vector<Bucket>& buckets) {
  int64_t total = 0;
  for (const Bucket& bucket : buckets) {
    if (bucket.plan.shard_params) total += bucket.layout.shard_numel;
  }
  if (total == 0) return;
  const int ranks = context_.comm.world_size();
  std::optional<TensorView> slab;
  if (context_.share_parameters && context_.comm.reads_peers()) {
    slab = share(total * ranks, Sharing::per_host, MemoryCategory::parameters);
  }
  const bool resident = slab.has_value();
  if (!resident) slab = share(total, Sharing::per_rank, MemoryCategory::parameters);
  ZR_CHECK(slab, "transport {} gives no per-rank memory", context_.comm.transport());
  int64_t cursor = 0;
  for (Bucket& bucket : buckets) {
    if (!bucket.plan.shard_params) continue;
    const int64_t shard = bucket.layout.shard_numel;
    bucket.resident = resident;
    if (resident) {
      bucket.param_full = slab->slice(cursor * ranks, shard * ranks);
      bucket.param_shard = bucket.param_full.slice(context_.comm.rank() * shard, shard);
    } else {
      bucket.param_shard = slab->slice(cursor, shard);
    }
    cursor += shard;
  }
}

void BucketMemory::place_gradients(std::vector<Bucket>& buckets) {
  const StagePolicy& policy = context_.policy;
  const bool in_place = reduces_in_place(context_);
  const auto reduced_numel = [&](const Bucket& bucket) {
    return policy.shard_state ? bucket.layout.shard_numel : bucket.layout.padded_numel();
  };
  int64_t home = 0;
  int64_t reduced = 0;
  for (const Bucket& bucket : buckets) {
    if (!bucket.plan.trainable) continue;
    if (!policy.shard_grads) home += bucket.layout.padded_numel();
    if (!in_place) reduced += reduced_numel(bucket);
  }
  TensorView home_slab;
  if (home > 0) {
    const std::optional<TensorView> slab =
        share(home, Sharing::per_rank, MemoryCategory::gradients);
    ZR_CHECK(slab, "transport {} gives no per-rank memory", context_.comm.transport());
    home_slab = *slab;
  }
  TensorView reduced_slab{nullptr, reduced, context_.accum_dtype};
  if (reduced > 0) {
    buffers_.push_back(context_.device.allocate(reduced_slab.nbytes(), MemoryCategory::gradients));
    reduced_slab.data = buffers_.back().data();
  }
  int64_t home_cursor = 0;
  int64_t reduced_cursor = 0;
  for (Bucket& bucket : buckets) {
    if (!bucket.plan.trainable) continue;
    if (!policy.shard_grads) {
      bucket.grad = home_slab.slice(home_cursor, bucket.layout.padded_numel());
      home_cursor += bucket.layout.padded_numel();
    }
    if (in_place) {
      const int64_t own = policy.shard_state ? context_.comm.rank() * bucket.layout.shard_numel : 0;
      bucket.reduced = bucket.grad.slice(own, reduced_numel(bucket));
    } else {
      bucket.reduced = reduced_slab.slice(reduced_cursor, reduced_numel(bucket));
      reduced_cursor += reduced_numel(bucket);
    }
  }
}

}  // namespace zerorun
