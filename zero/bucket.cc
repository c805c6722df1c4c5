#include "zero/bucket.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace zerorun {

namespace {

// Elements of offloaded states that are moved and updated together, at most: enough to keep copies
// and disks busy, few enough that staging stays small.
constexpr int64_t kMaxChunkNumel = int64_t{1} << 22;

// Of the chunks of states, and of parameters that move.
int64_t chunk_numel(const Sharding& sharding) {
  int64_t numel = std::min(sharding.offload.sub_group_size, kMaxChunkNumel);
  if (sharding.moves_parameters()) numel = std::min(numel, sharding.offload.param.buffer_size);
  return std::max(numel, kNormBlock);
}

void hold_states(const Sharding& sharding, Bucket& bucket) {
  const BucketLayout& layout = bucket.layout;
  const OffloadOptimizerConfig& offload = sharding.offload.optimizer;
  bucket.held_from = sharding.policy.shard_state ? sharding.rank * layout.shard_numel : 0;
  bucket.held_numel = sharding.policy.shard_state ? layout.shard_numel : layout.padded_numel();
  bucket.host_from = bucket.held_numel;
  const bool moves = sharding.moves_parameters() && bucket.plan.shard_params;
  ChunkSizes sizes{.device = bucket.held_numel, .host = chunk_numel(sharding)};
  if (moves) sizes.device = sizes.host;
  const auto chunks = [&] {
    return cut_chunks(layout, bucket.held_from, bucket.held_numel, bucket.host_from, sizes);
  };
  if (!bucket.plan.trainable) {
    if (moves) bucket.param_chunks = chunks();
    return;
  }
  bucket.offloaded = sharding.offloads_states();
  const auto on_device =
      static_cast<int64_t>(static_cast<double>(bucket.held_numel) * (1.0 - offload.ratio));
  if (bucket.offloaded) {
    const int64_t cut = cut_near(layout, bucket.held_from + on_device, bucket.held_from);
    bucket.host_from = on_device == 0 ? 0 : std::min(bucket.held_numel, cut - bucket.held_from);
  }
  bucket.chunks = chunks();
  if (moves) bucket.param_chunks = bucket.chunks;
}

// Chunks of a rank's shards rest in memory while they fit into `max_in_cpu` elements, or all do.
void place_parameters(const Sharding& sharding, std::vector<Bucket>& buckets) {
  const OffloadParamConfig& offload = sharding.offload.param;
  int64_t in_memory = 0;
  int chunks_in_memory = 0;
  int chunks_in_file = 0;
  for (Bucket& bucket : buckets) {
    for (StateChunk& chunk : bucket.param_chunks) {
      chunk.on_host =
          offload.device == OffloadDevice::cpu || in_memory + chunk.numel() <= offload.max_in_cpu;
      if (chunk.on_host) in_memory += chunk.numel();
      chunk.index = chunk.on_host ? chunks_in_memory++ : chunks_in_file++;
    }
  }
}

}  // namespace

std::vector<Bucket> make_buckets(const Sharding& sharding, std::span<const int64_t> numels,
                                 std::span<const ModuleId> modules) {
  std::vector<Bucket> buckets;
  for (BucketPlan& plan : plan_buckets(sharding.specs, numels, modules, sharding.zero)) {
    Bucket bucket;
    bucket.index = static_cast<int>(buckets.size());
    bucket.layout = lay_out(plan.parameters, sharding.world_size, sharding.parameter_alignment);
    const auto name = [&](const SizedParameter& parameter) -> const std::string& {
      return sharding.specs[static_cast<size_t>(parameter.parameter)].name;
    };
    bucket.label = fmt::format("bucket {} ({} .. {})", bucket.index, name(plan.parameters.front()),
                               name(plan.parameters.back()));
    bucket.plan = std::move(plan);
    hold_states(sharding, bucket);
    buckets.push_back(std::move(bucket));
  }
  place_parameters(sharding, buckets);
  return buckets;
}

std::vector<Interval> Bucket::own_intervals(int rank, int64_t begin, int64_t numel) const {
  const int64_t shard = rank * layout.shard_numel;
  const int64_t first = std::max(held_from + begin, shard);
  const int64_t last = std::min(held_from + begin + numel, shard + layout.shard_numel);
  return layout.intervals(first, last);  // none where they do not meet
}

bool reduces_in_place(const Sharding& sharding) {
  return !sharding.policy.shard_grads && sharding.accumulation_steps == 1 &&
         sharding.comm_dtype == sharding.param_dtype &&
         sharding.accum_dtype == sharding.param_dtype;
}

BucketMemory::BucketMemory(const EngineContext& context, std::vector<Bucket>& buckets)
    : context_(context) {
  const BucketNumels numels = count_numels(context, buckets);
  place_replicated(buckets, numels.replicated);
  place_sharded(buckets, numels.sharded);
  place_gradients(buckets, numels.home, numels.reduced);
}

BucketNumels count_numels(const Sharding& sharding, std::span<const Bucket> buckets) {
  BucketNumels numels;
  for (const Bucket& bucket : buckets) {
    if (bucket.plan.shard_params) {
      if (bucket.param_chunks.empty()) numels.sharded += bucket.layout.shard_numel;
    } else {
      numels.replicated += bucket.layout.padded_numel();
    }
    if (!bucket.plan.trainable) continue;
    if (!sharding.policy.shard_grads) numels.home += bucket.layout.padded_numel();
    if (!reduces_in_place(sharding)) numels.reduced += bucket.host_from;
  }
  return numels;
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

void BucketMemory::place_replicated(std::vector<Bucket>& buckets, int64_t total) {
  if (total == 0) return;
  const std::optional<TensorView> arena =
      share(total, Sharing::per_rank, MemoryCategory::parameters);
  ZR_CHECK(arena, "transport {} gives no per-rank memory", context_.comm.transport());
  int64_t cursor = 0;
  for (Bucket& bucket : buckets) {
    if (bucket.plan.shard_params) continue;
    const BucketLayout& layout = bucket.layout;
    bucket.param_full = arena->slice(cursor, layout.padded_numel());
    bucket.param_shard =
        bucket.param_full.slice(context_.comm.rank() * layout.shard_numel, layout.shard_numel);
    cursor += layout.padded_numel();
  }
}

void BucketMemory::place_sharded(std::vector<Bucket>& buckets, int64_t total) {
  if (total == 0) return;
  const int ranks = context_.comm.world_size();
  const bool on_host = context_.offload.param.device != OffloadDevice::none;
  const MemoryCategory category = on_host ? MemoryCategory::pinned : MemoryCategory::parameters;
  std::optional<TensorView> arena;
  if (context_.share_parameters && context_.comm.reads_peers()) {
    arena = share(total * ranks, Sharing::per_host, category);
  }
  const bool resident = arena.has_value();
  if (!resident) arena = share(total, Sharing::per_rank, category);
  ZR_CHECK(arena, "transport {} gives no per-rank memory", context_.comm.transport());
  int64_t cursor = 0;
  for (Bucket& bucket : buckets) {
    if (!bucket.plan.shard_params) continue;
    const int64_t shard = bucket.layout.shard_numel;
    bucket.resident = resident;
    if (resident) {
      bucket.param_full = arena->slice(cursor * ranks, shard * ranks);
      bucket.param_shard = bucket.param_full.slice(context_.comm.rank() * shard, shard);
    } else {
      bucket.param_shard = arena->slice(cursor, shard);
    }
    cursor += shard;
  }
}

void BucketMemory::place_gradients(std::vector<Bucket>& buckets, int64_t home, int64_t reduced) {
  const StagePolicy& policy = context_.policy;
  const bool in_place = reduces_in_place(context_);
  TensorView home_arena;
  if (home > 0) {
    const std::optional<TensorView> arena =
        share(home, Sharing::per_rank, MemoryCategory::gradients);
    ZR_CHECK(arena, "transport {} gives no per-rank memory", context_.comm.transport());
    home_arena = *arena;
  }
  TensorView reduced_arena{nullptr, reduced, context_.accum_dtype};
  if (reduced > 0) {
    buffers_.push_back(context_.device.allocate(reduced_arena.nbytes(), MemoryCategory::gradients));
    reduced_arena.data = buffers_.back().data();
  }
  int64_t home_cursor = 0;
  int64_t reduced_cursor = 0;
  for (Bucket& bucket : buckets) {
    if (!bucket.plan.trainable) continue;
    if (!policy.shard_grads) {
      bucket.grad = home_arena.slice(home_cursor, bucket.layout.padded_numel());
      home_cursor += bucket.layout.padded_numel();
    }
    if (in_place) {
      bucket.reduced = bucket.grad.slice(bucket.held_from, bucket.held_numel);
    } else {
      bucket.reduced = reduced_arena.slice(reduced_cursor, bucket.host_from);
      reduced_cursor += bucket.host_from;
    }
  }
}

}  // namespace zerorun
