#include "zero/partition/sharding.h"

#include <algorithm>

#include "config/conflicts.h"
#include "core/check.h"

namespace zerorun {

namespace {

// Between GPUs a reduction of so many bytes is about as fast as a longer one, and sooner out of the
// way; other frameworks' buckets have 25 to 100 MB.
constexpr int64_t kGpuBucketBytes = 100'000'000;

// With as many as share the first copy, that one serves.
int secondary_ranks_of(const ZeroConfig& zero, int shard_ranks) {
  const int64_t size = zero.hpz_partition_size;
  if (size <= 1) return 0;
  if (size > shard_ranks || shard_ranks % size != 0) {
    fail<ConfigError>(
        "{}: got {} where {} ranks share a copy of the parameters, expected a number that divides "
        "them, as a rule the ranks of a host",
        kSecondaryKey, size, shard_ranks);
  }
  return size == shard_ranks ? 0 : static_cast<int>(size);
}

// The fp32 shards of an outside optimizer are its parameters, and their gradients fp32 as well.
void choose_gradient_dtypes(const Config& config, Sharding& sharding) {
  const DType param = config.precision.param_dtype;
  sharding.precision.comm_dtype = config.precision.communication_dtype.value_or(param);
  const bool wide_partial = sharding.computes_on_host && !config.precision.communication_dtype;
  sharding.precision.partial_dtype = wide_partial ? DType::fp32 : sharding.precision.comm_dtype;
  const bool sums = sharding.accumulation_steps > 1 && !config.precision.master_is_param;
  const bool wide = sums || config.optimizer.type == kExternalOptimizer;
  sharding.precision.accum_dtype = config.precision.grad_accum_dtype.value_or(
      wide ? DType::fp32 : sharding.precision.comm_dtype);
}

// As DeepSpeed 0.19 (deepspeed/runtime/zero/stage_1_and_2.py): prescaling divides by the world size
// before the sum, else a part of that division may be done before it.
double pre_scale(const PrecisionConfig& precision, int world_size) {
  if (precision.gradient_reduction == GradientReduction::sum) return 1.0;
  return 1.0 / (precision.prescale_gradients ? world_size : precision.gradient_predivide_factor);
}

void check_stage(const Config& config) {
  for (const KeyProblem& problem : stage_problems(config)) {
    fail<ConfigError>("{} {}", problem.pointer, problem.text);
  }
  if (config.offload.optimizer.device == OffloadDevice::nvme &&
      config.optimizer.type == kExternalOptimizer) {
    fail<ConfigError>(
        "/zero_optimization/offload_optimizer/device is \"nvme\", but the optimizer is the "
        "caller's, which keeps its states itself: name an optimizer in /optimizer, or offload to "
        "\"cpu\"");
  }
}

}  // namespace

int shard_ranks_of(const ZeroConfig& zero, int world_size) {
  const int64_t size = zero.shard_group_size;
  if (size == 0 || zero.stage == 0) return world_size;
  if (size < 0 || size > world_size || world_size % size != 0) {
    fail<ConfigError>(
        "{}: got {} for {} ranks, expected a number that divides them, so that all groups are of "
        "one size",
        kShardGroupKey, size, world_size);
  }
  return static_cast<int>(size);
}

bool reduces_in_place(const Sharding& sharding) {
  return !sharding.policy.shard_grads && sharding.accumulation_steps == 1 &&
         sharding.precision.comm_dtype == sharding.precision.param_dtype &&
         sharding.precision.accum_dtype == sharding.precision.param_dtype;
}

ZeroConfig at_stage(ZeroConfig zero, int stage) {
  zero.stage = stage;
  if (stage < 3) {
    zero.hpz_partition_size = 1;
    zero.quantized_nontrainable_weights = false;
  }
  if (stage == 0) {
    zero.shard_group_size = 0;
    zero.quantized_weights = zero.quantized_gradients = false;
    zero.loco.reset();
  }
  return zero;
}

Sharding make_sharding(const Config& config, std::span<const ParameterSpec> specs,
                       const Optimizer& rule, int world_size, int rank, bool computes_on_host) {
  check_stage(config);
  Sharding sharding{.specs = specs,
                    .policy = stage_policy(config.zero.stage),
                    .zero = config.zero,
                    .offload = config.offload};
  sharding.precision.param_dtype = config.precision.param_dtype;
  sharding.accumulation_steps = std::max<int64_t>(1, config.batch.accumulation_steps);
  sharding.precision.pre_scale = pre_scale(config.precision, world_size);
  sharding.computes_on_host = computes_on_host;
  choose_gradient_dtypes(config, sharding);
  sharding.share_parameters = config.share_parameters;
  sharding.precision.master_is_param = config.precision.master_is_param;
  sharding.parameter_alignment = rule.alignment();
  sharding.place.world_size = world_size;
  sharding.place.rank = rank;
  sharding.place.shard_ranks = shard_ranks_of(config.zero, world_size);
  sharding.place.secondary_ranks = secondary_ranks_of(config.zero, sharding.place.shard_ranks);
  if (!computes_on_host && config.zero.reduce_bucket_size == ZeroConfig().reduce_bucket_size) {
    sharding.zero.reduce_bucket_size =
        kGpuBucketBytes / static_cast<int64_t>(size_of(sharding.precision.param_dtype));
  }
  // A GPU's cores that compute are not those that communicate; a CPU rank's are.
  sharding.zero.overlap_comm = config.zero.overlap_comm.value_or(!computes_on_host);
  // Without a stream of its own, gathering ahead only moves the wait.
  if (!*sharding.zero.overlap_comm) sharding.zero.prefetch_bucket_size = 0;
  return sharding;
}

std::vector<std::string_view> zeropp_keys(const ZeroConfig& zero) {
  std::vector<std::string_view> keys;
  const auto add = [&](bool asked, std::string_view key) {
    if (asked) keys.push_back(key);
  };
  add(zero.hpz_partition_size != 1, "/zero_optimization/zero_hpz_partition_size");
  add(zero.quantized_weights, "/zero_optimization/zero_quantized_weights");
  add(zero.quantized_nontrainable_weights,
      "/zero_optimization/zero_quantized_nontrainable_weights");
  add(zero.quantized_gradients, "/zero_optimization/zero_quantized_gradients");
  add(zero.loco.has_value(), "/zero_optimization/zeropp_loco_param");
  return keys;
}

void check_quantized_groups(int64_t groups, int64_t ranks) {
  if (groups == 1) return;
  fail<ConfigError>(
      "/zero_optimization/zero_quantized_gradients is true, but {} has {} groups of {} ranks, "
      "which "
      "add their sums as they are; leave one of them out",
      kShardGroupKey, groups, ranks);
}

std::vector<std::string_view> resolve_groups(ZeroConfig& zero, int world_size, int ranks_per_host) {
  overlap_between_hosts(zero, world_size, ranks_per_host);
  if (zero.shard_group_size == kRanksOfHost) {
    zero.shard_group_size = zero.stage > 0 ? ranks_per_host : 0;
  }
  const int64_t shards = zero.shard_group_size > 0 ? zero.shard_group_size : world_size;
  const bool one_host = world_size <= ranks_per_host;
  if (one_host || (shards <= ranks_per_host && ranks_per_host % shards == 0)) {
    std::vector<std::string_view> idle = zeropp_keys(zero);
    zero = without_zeropp(zero);
    return idle;
  }
  if (zero.hpz_partition_size == kRanksOfHost) zero.hpz_partition_size = ranks_per_host;
  if (zero.quantized_gradients) check_quantized_groups(world_size / shards, shards);
  return {};
}

void overlap_between_hosts(ZeroConfig& zero, int world_size, int ranks_per_host) {
  if (!zero.overlap_comm && ranks_per_host < world_size) zero.overlap_comm = true;
}

ZeroConfig without_zeropp(ZeroConfig zero) {
  const ZeroConfig none;
  zero.hpz_partition_size = none.hpz_partition_size;
  zero.quantized_weights = none.quantized_weights;
  zero.quantized_nontrainable_weights = none.quantized_nontrainable_weights;
  zero.quantized_gradients = none.quantized_gradients;
  zero.loco = none.loco;
  return zero;
}

}  // namespace zerorun
