#include "zero/memory_plan.h"

#include <algorithm>

#include "zero/gradients/gradient_pool.h"
#include "zero/gradients/quantized_reduction.h"
#include "zero/groups/zeropp.h"
#include "zero/parameters/quantized_gather.h"
#include "zero/partition/model_spec.h"
#include "zero/partition/sharded_model.h"
#include "zero/storage/bucket_memory.h"
#include "zero/storage/chunk_storage.h"
#include "zero/storage/direction.h"
#include "zero/storage/offload.h"

namespace zerorun {

namespace {

int64_t nbytes_of(int64_t numel, DType dtype) {
  return numel * static_cast<int64_t>(size_of(dtype));
}

void plan_states(std::span<const StateLayout> chunks, MemoryPlan& plan) {
  for (const StateLayout& chunk : chunks) {
    for (const StateSpec& spec : chunk.tensors) {
      const int64_t nbytes = nbytes_of(spec.numel(chunk.numel), spec.dtype);
      (spec.name == "master" ? plan.masters : plan.moments) += nbytes;
    }
  }
}

// Bytes that ParameterGatherer keeps full at one time: what is prefetched, and what is used again
// soon. Backward visits modules in reverse, so half of the reuse distance lies on each side of the
// turn. The limits count elements, which may be those of the widest dtype.
int64_t gathered_nbytes(const Sharding& sharding, const ModelSpec& model,
                        std::span<const Bucket> buckets) {
  std::vector<int64_t> modules(static_cast<size_t>(model.module_count()), 0);
  int64_t total = 0;
  int64_t widest = 1;
  for (const Bucket& bucket : buckets) {
    if (!bucket.plan.shard_params) continue;
    modules[static_cast<size_t>(bucket.plan.module)] += bucket.full_nbytes();
    total += bucket.full_nbytes();
    widest = std::max(widest, static_cast<int64_t>(size_of(bucket.dtype)));
  }
  // Of elements, which may be "all there are".
  const auto at_most = [&](int64_t numel) {
    return numel > total / widest ? total : numel * widest;
  };
  const int64_t largest = *std::max_element(modules.begin(), modules.end());
  const ZeroConfig& zero = sharding.zero;
  const int64_t prefetched =
      zero.prefetch_bucket_size == 0 ? 0 : std::max(largest, at_most(zero.prefetch_bucket_size));
  const int64_t ahead = std::min(total, largest + prefetched);
  const int64_t kept = at_most(std::min(zero.max_live_parameters, zero.max_reuse_distance / 2));
  return std::min(total, kept + ahead);
}

// True if CPU ranks keep stage 3's full parameters once per host (BucketMemory): all ranks of a
// shard group are on one.
bool keeps_one_copy(const Sharding& sharding) {
  const bool one_host = sharding.place.world_size <= sharding.place.host_ranks ||
                        sharding.place.host_ranks % sharding.place.shard_ranks == 0;
  return sharding.computes_on_host && sharding.share_parameters && one_host &&
         zeropp_keys(sharding.zero).empty();
}

// The temporary in which NCCL sums the largest bucket, where the sum is then cast or accumulated
// (NcclCall::scratch_nbytes).
int64_t reduction_nbytes(const Sharding& sharding, std::span<const Bucket> buckets) {
  if (sharding.computes_on_host || reduces_in_place(sharding)) return 0;
  const bool adds = sharding.accumulation_steps > 1;
  int64_t numel = 0;
  for (const Bucket& bucket : buckets) {
    if (!bucket.plan.trainable) continue;
    // Offloaded gradients are accumulated on the host, in fp32.
    const bool apart =
        sharding.precision.comm_dtype != sharding.precision.accum_dtype ||
        (adds && (!bucket.stored.offloaded || sharding.precision.comm_dtype != DType::fp32));
    if (apart) numel = std::max(numel, bucket.stored.numel);
  }
  return nbytes_of(numel, sharding.precision.comm_dtype);
}

void plan_buckets_in_flight(const Sharding& sharding, std::span<const Optimizer> rules,
                            std::span<const Bucket> buckets, MemoryPlan& plan) {
  const GradientPools pools = gradient_pools(sharding, buckets);
  plan.buckets +=
      nbytes_of(pools.slot_numel * pools.slots + pools.small_numel, sharding.precision.param_dtype);
  plan.buckets += nbytes_of(pools.slot_numel * pools.comm_slots, sharding.precision.comm_dtype);
  plan.buckets += reduction_nbytes(sharding, buckets);
  plan.buckets += QuantizedGather::nbytes(buckets);
  plan.buckets += QuantizedReduction::sizes(sharding, buckets).buffers;
  plan.buckets += nbytes_of(pools.partial_numel, sharding.precision.partial_dtype);
  const DirectionSize direction = direction_size(sharding, rules, buckets);
  plan.buckets += nbytes_of(direction.numel + direction.work, DType::fp32);
}

}  // namespace

std::array<int64_t, kMemoryCategories> MemoryPlan::by_category() const {
  std::array<int64_t, kMemoryCategories> bytes{};
  const auto of = [&](MemoryCategory category) -> int64_t& {
    return bytes[static_cast<size_t>(category)];
  };
  of(MemoryCategory::parameters) = parameters + secondary;
  of(MemoryCategory::gradients) = gradients;
  of(MemoryCategory::optimizer) = masters + moments;
  of(MemoryCategory::buckets) = buckets + gathered;
  of(MemoryCategory::pinned) = pinned;
  of(MemoryCategory::nvme) = nvme;
  return bytes;
}

MemoryPlan plan_memory(const Config& config, std::span<const ParameterSpec> specs,
                       const HostLayout& layout) {
  Config own = config;
  resolve_groups(own.zero, layout.world_size, layout.ranks_per_host);
  return plan_memory(ShardedModel(own, specs, layout.world_size, layout.cpu), layout);
}

MemoryPlan plan_memory(const ShardedModel& sharded, const HostLayout& layout) {
  const auto& [rules, model, of_model, buckets, bounds_link] = sharded;
  Sharding sharding = of_model;
  sharding.place.host_ranks = layout.ranks_per_host;

  MemoryPlan plan;
  const BucketSizes sizes = sizes_of(sharding, buckets);
  plan.parameters = sizes.replicated;
  const bool params_on_host = sharding.offload.param.device != OffloadDevice::none;
  (params_on_host ? plan.pinned : plan.parameters) += sizes.sharded;
  plan.secondary = sizes.secondary;
  plan.gradients = nbytes_of(sizes.gradients, sharding.precision.param_dtype) +
                   nbytes_of(sizes.reduced, sharding.precision.accum_dtype) +
                   QuantizedReduction::sizes(sharding, buckets).lost;
  plan_states(state_layouts(sharding, rules, buckets, false), plan);
  plan_buckets_in_flight(sharding, rules, buckets, plan);
  if (!keeps_one_copy(sharding) || sharding.moves_parameters()) {
    plan.gathered = gathered_nbytes(sharding, model, buckets);
  }
  if (sharding.offloads_states() || sharding.moves_parameters()) {
    const auto chunks = state_layouts(sharding, rules, buckets, true);
    const OffloadSizes offloaded = offload_sizes(sharding, rules, buckets, chunks);
    plan.buckets += static_cast<int64_t>(HostGradients::device_nbytes(sharding, buckets));
    plan.buckets += static_cast<int64_t>(offloaded.parameters.device);
    plan.pinned += static_cast<int64_t>(offloaded.pinned());
    plan.nvme = static_cast<int64_t>(offloaded.states_file + offloaded.parameters.file);
  }
  return plan;
}

}  // namespace zerorun
