#include "zero/sharding.h"

#include <algorithm>
#include <string_view>

#include "comm/agreement.h"
#include "comm/link_bound.h"
#include "config/conflicts.h"
#include "core/check.h"

namespace zerorun {

namespace {

constexpr std::string_view kShardGroup = "/zerorun/shard_group_size";

int shard_ranks_of(const ZeroConfig& zero, int world_size) {
  const int64_t size = zero.shard_group_size;
  if (size == 0) return world_size;
  if (zero.stage == 0) {
    fail<ConfigError>("{} is {}, but at stage 0 nothing is sharded: use stage 1, 2 or 3",
                      kShardGroup, size);
  }
  if (size < 0 || size > world_size || world_size % size != 0) {
    fail<ConfigError>(
        "{}: got {} for {} ranks, expected a number that divides them, so that all groups are of "
        "one size",
        kShardGroup, size, world_size);
  }
  return static_cast<int>(size);
}

// The same on every rank, or an error there.
int64_t ranks_of_host(Communicator& comm, Stream& stream) {
  const int64_t here = comm.local_world_size();
  Agreement agreement(comm, stream);
  const int64_t least = agreement.reduce(here, ReduceOp::min);
  const int64_t most = agreement.reduce(here, ReduceOp::max);
  if (least == most) return here;
  fail<ConfigError>(
      "{} is \"auto\", the ranks of a host, but hosts have from {} to {} ranks: give a number",
      kShardGroup, least, most);
}

// The fp32 shards of an outside optimizer are its parameters, and their gradients fp32 as well.
void choose_gradient_dtypes(const Config& config, Sharding& sharding) {
  const DType param = config.precision.param_dtype;
  sharding.comm_dtype = config.precision.communication_dtype.value_or(param);
  const bool wide_partial = sharding.computes_on_host && !config.precision.communication_dtype;
  sharding.partial_dtype = wide_partial ? DType::fp32 : sharding.comm_dtype;
  const bool sums = sharding.accumulation_steps > 1 && !config.precision.master_is_param;
  const bool wide = sums || config.optimizer.type == kExternalOptimizer;
  sharding.accum_dtype =
      config.precision.grad_accum_dtype.value_or(wide ? DType::fp32 : sharding.comm_dtype);
  if (const auto problem = accumulation_problem(sharding.accum_dtype, sharding.comm_dtype)) {
    fail<ConfigError>("/data_types/grad_accum_dtype: {}", *problem);
  }
}

// As DeepSpeed 0.19 (deepspeed/runtime/zero/stage_1_and_2.py): prescaling divides by the world size
// before the sum, else a part of that division may be done before it.
double pre_scale(const PrecisionConfig& precision, int world_size) {
  if (precision.gradient_reduction == GradientReduction::sum) return 1.0;
  return 1.0 / (precision.prescale_gradients ? world_size : precision.gradient_predivide_factor);
}

void check_offload(const Config& config) {
  const OffloadConfig& offload = config.offload;
  const bool states = offload.optimizer.device != OffloadDevice::none;
  if (states && config.zero.stage < 1) {
    fail<ConfigError>(
        "/zero_optimization/offload_optimizer/device needs /zero_optimization/stage 1, 2 or 3, got "
        "{}",
        config.zero.stage);
  }
  if (offload.param.device != OffloadDevice::none && config.zero.stage < 3) {
    fail<ConfigError>(
        "/zero_optimization/offload_param/device needs /zero_optimization/stage 3, got {}",
        config.zero.stage);
  }
  if (offload.optimizer.device == OffloadDevice::nvme &&
      config.optimizer.type == kExternalOptimizer) {
    fail<ConfigError>(
        "/zero_optimization/offload_optimizer/device is \"nvme\", but the optimizer is the "
        "caller's, which keeps its states itself: name an optimizer in /optimizer, or offload to "
        "\"cpu\"");
  }
}

// Throws ConfigError for groups that contradict each other or what the configuration asks for.
void check_groups(const Config& config, std::span<const ParameterSpec> specs,
                  const Communicator& comm, const EngineGroups& groups) {
  const int job = groups.job != nullptr ? groups.job->world_size() : comm.world_size();
  if (groups.part < 0 || groups.part >= groups.part_count ||
      comm.world_size() * groups.part_count != job) {
    fail<ConfigError>(
        "part {} of a model of {} parts with {} ranks each: the job has {} ranks, expected as many "
        "as all parts together",
        groups.part, groups.part_count, comm.world_size(), job);
  }
  for (const ParameterSpec& spec : specs) {
    if (spec.ranks >= kElsewhere && spec.ranks <= static_cast<int>(groups.parts.size())) continue;
    fail<ConfigError>("parameter {}: ranks is {}, but the engine has {} groups of its ranks",
                      spec.name, spec.ranks, groups.parts.size());
  }
  const bool divided = groups.part_count > 1 || !groups.parts.empty();
  if (divided && (config.optimizer.type == "Lamb" || config.optimizer.type == "Muon")) {
    fail<ConfigError>(
        "/optimizer/type is \"{}\", which looks at whole parameters, and this model is divided "
        "among ranks (model or expert parallelism): use AdamW, Adam, Adagrad, Lion or SGD",
        config.optimizer.type);
  }
  if (!groups.parts.empty() && config.zero.shard_group_size != 0) {
    fail<ConfigError>(
        "{} is not for a model with expert parallelism, whose experts have groups of their own: "
        "leave it out",
        kShardGroup);
  }
}

}  // namespace

bool reduces_in_place(const Sharding& sharding) {
  return !sharding.policy.shard_grads && sharding.accumulation_steps == 1 &&
         sharding.comm_dtype == sharding.param_dtype &&
         sharding.accum_dtype == sharding.param_dtype;
}

Sharding make_sharding(const Config& config, std::span<const ParameterSpec> specs,
                       const Optimizer& rule, int world_size, int rank, bool computes_on_host) {
  check_offload(config);
  Sharding sharding{.specs = specs,
                    .policy = stage_policy(config.zero.stage),
                    .zero = config.zero,
                    .offload = config.offload};
  sharding.param_dtype = config.precision.param_dtype;
  sharding.accumulation_steps = std::max<int64_t>(1, config.batch.accumulation_steps);
  sharding.pre_scale = pre_scale(config.precision, world_size);
  sharding.computes_on_host = computes_on_host;
  choose_gradient_dtypes(config, sharding);
  sharding.share_parameters = config.share_parameters;
  sharding.master_is_param = config.precision.master_is_param;
  sharding.parameter_alignment = rule.alignment();
  sharding.world_size = world_size;
  sharding.rank = rank;
  sharding.shard_ranks = shard_ranks_of(config.zero, world_size);
  // A GPU's cores that compute are not those that communicate; a CPU rank's are.
  sharding.zero.overlap_comm = config.zero.overlap_comm.value_or(!computes_on_host);
  // Without a stream of its own, gathering ahead only moves the wait.
  if (!*sharding.zero.overlap_comm) sharding.zero.prefetch_bucket_size = 0;
  return sharding;
}

EngineContext make_context(const Config& config, std::span<const ParameterSpec> specs,
                           const Optimizer& rule, Device& device, Communicator& comm,
                           const EngineGroups& groups) {
  check_groups(config, specs, comm, groups);
  Config resolved = config;
  if (config.zero.shard_group_size == kRanksOfHost) {
    resolved.zero.shard_group_size =
        config.zero.stage > 0 ? ranks_of_host(comm, device.inline_stream()) : 0;
  }
  EngineContext context{
      make_sharding(resolved, specs, rule, comm.world_size(), comm.rank(), device.is_host()),
      device, comm};
  context.groups = groups;
  for (const Communicator* part : groups.parts) {
    const int ranks = part->world_size();
    context.parts.push_back({.world_size = ranks, .rank = part->rank(), .shard_ranks = ranks});
  }
  if (context.replicas() > 1) {
    const int replica = context.replica();
    const int shard = context.shard_rank();
    context.shard_group = comm.split(replica, shard, fmt::format("shard group {}", replica));
    context.replica_group = comm.split(shard, replica, fmt::format("replicas of shard {}", shard));
  }
  if (const auto dtype = config.precision.communication_dtype) {
    bound_link(comm, *dtype);
    if (context.shard_group) bound_link(*context.shard_group, *dtype);
    if (context.replica_group) bound_link(*context.replica_group, *dtype);
  }
  return context;
}

}  // namespace zerorun
