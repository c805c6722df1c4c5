#include "zero/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "core/format_bytes.h"
#include "zero/gradients/gradient_pool.h"
#include "zero/gradients/quantized_reduction.h"
#include "zero/parameters/gathers.h"
#include "zero/storage/bucket_memory.h"
#include "zero/storage/chunk_storage.h"
#include "zero/storage/offload.h"

namespace zerorun {

namespace {

size_t count_groups(std::span<const ParameterSpec> parameters) {
  size_t groups = 1;
  for (const ParameterSpec& parameter : parameters) {
    groups = std::max(groups, static_cast<size_t>(parameter.group) + 1);
  }
  return groups;
}

void add_states(std::span<const StateLayout> chunks, MemoryPlan& plan) {
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

struct Remedy {
  std::string_view setting;
  std::string_view of;  // the memory that it acts on
  size_t nbytes = 0;
};

// From the one that costs a step the least time to the one that costs the most.
std::vector<Remedy> remedies(const MemorySettings& now, const MemoryShortage& shortage) {
  const auto wanted = [&](MemoryCategory category) {
    const int64_t live = shortage.live_bytes[static_cast<size_t>(category)];
    return static_cast<size_t>(std::max<int64_t>(0, live)) +
           (category == shortage.category ? shortage.nbytes : 0);
  };
  const size_t optimizer = wanted(MemoryCategory::optimizer);
  const size_t gradients = wanted(MemoryCategory::gradients);
  std::vector<Remedy> found;
  if (now.stage == 0) {
    found.push_back({"zero_optimization.stage 1 on more ranks, or with offload_optimizer",
                     "optimizer", optimizer});
  } else if (!now.offload_optimizer && now.stage == 1) {
    found.push_back({"offload_optimizer", "optimizer", optimizer});
  } else if (!now.offload_optimizer) {  // reduced gradients are stored with the states
    found.push_back({"offload_optimizer", "optimizer and gradients", optimizer + gradients});
  }
  if (now.stage < 2) found.push_back({"zero_optimization.stage 2", "gradients", gradients});
  // A bucket of stage 3 is a module.
  found.push_back(
      {now.stage < 3 ? "a smaller reduce_bucket_size" : "a smaller stage3_max_live_parameters",
       "buckets", wanted(MemoryCategory::buckets)});
  found.push_back({"a smaller train_micro_batch_size_per_gpu or recomputation", "activations",
                   wanted(MemoryCategory::activations)});
  if (!now.offload_param) {
    found.push_back({now.stage < 3 ? "zero_optimization.stage 3" : "offload_param", "parameters",
                     wanted(MemoryCategory::parameters)});
  }
  std::erase_if(found, [](const Remedy& remedy) { return remedy.nbytes == 0; });
  return found;
}

std::string memory_advice(const MemorySettings& settings, const MemoryShortage& shortage) {
  std::string enough;
  std::string together;
  size_t sum = 0;
  for (const Remedy& remedy : remedies(settings, shortage)) {
    std::string& list = remedy.nbytes >= shortage.missing ? enough : together;
    list += fmt::format("{}{} (acts on {} of {})", list.empty() ? "" : "; ", remedy.setting,
                        format_bytes(remedy.nbytes), remedy.of);
    sum += remedy.nbytes;
  }
  if (!enough.empty()) return "Any of these can make room: " + enough;
  if (sum >= shortage.missing && sum > 0) {
    return "No setting frees enough by itself; together: " + together;
  }
  return "No setting makes enough room: use more ranks, a smaller model or a GPU with more memory";
}

}  // namespace

ShardedModel::ShardedModel(const Config& config, std::span<const ParameterSpec> parameters,
                           int world_size, bool computes_on_host)
    : rules(make_optimizers(config.optimizer, config.precision)),
      model(with_rules({parameters.begin(), parameters.end()}, config.optimizer, rules.size() > 1),
            count_groups(parameters)),
      sharding(
          make_sharding(config, model.specs(), rules.front(), world_size, 0, computes_on_host)),
      buckets(make_buckets(sharding, model.numels(), model.modules())),
      bounds_link(config.precision.communication_dtype.has_value()) {}

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

MemoryPlan plan_states(const Sharding& sharding, std::span<const Optimizer> rules,
                       std::span<const Bucket> buckets) {
  MemoryPlan plan;
  const BucketSizes sizes = sizes_of(sharding, buckets);
  plan.parameters = sizes.replicated;
  const bool params_on_host = sharding.offload.param.device != OffloadDevice::none;
  (params_on_host ? plan.pinned : plan.parameters) += sizes.sharded;
  plan.secondary = sizes.secondary;
  plan.gradients = nbytes_of(sizes.gradients, sharding.precision.param_dtype) +
                   nbytes_of(sizes.reduced, sharding.precision.accum_dtype) +
                   QuantizedReduction::sizes(sharding, buckets).lost;
  add_states(state_layouts(sharding, rules, buckets, false), plan);
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

MemoryPlan plan_memory(const ShardedModel& sharded, const HostLayout& layout) {
  const auto& [rules, model, of_model, buckets, bounds_link] = sharded;
  Sharding sharding = of_model;
  sharding.place.host_ranks = layout.ranks_per_host;

  MemoryPlan plan = plan_states(sharding, rules, buckets);
  plan_buckets_in_flight(sharding, rules, buckets, plan);
  if (!keeps_one_copy(sharding) || sharding.moves_parameters()) {
    plan.gathered = gathered_nbytes(sharding, model, buckets);
  }
  return plan;
}

MemorySettings memory_settings(const Config& config) {
  const OffloadConfig& offload = config.offload;
  return {.stage = static_cast<int>(config.zero.stage),
          .offload_optimizer =
              offload.optimizer.device != OffloadDevice::none && offload.optimizer.ratio > 0,
          .offload_param = offload.param.device != OffloadDevice::none};
}

MemoryAdviser memory_adviser(const MemorySettings& settings) {
  return [settings](const MemoryShortage& shortage) { return memory_advice(settings, shortage); };
}

}  // namespace zerorun
