// Makes the groups of the engine's ranks.
#include "zero/groups/engine_context.h"

#include <fmt/ranges.h>

#include <optional>
#include <string_view>
#include <utility>

#include "comm/agreement.h"
#include "comm/group_communicator.h"
#include "core/check.h"

namespace zerorun {

namespace {

// The same on every rank, or an error there.
int64_t ranks_of_host(Communicator& comm, Stream& stream, std::string_view key) {
  const int64_t here = comm.local_world_size();
  Agreement agreement(comm, stream);
  const int64_t least = agreement.reduce(here, ReduceOp::min);
  const int64_t most = agreement.reduce(here, ReduceOp::max);
  if (least == most) return here;
  fail<ConfigError>(
      "{} needs as many ranks on each host, but hosts have from {} to {} ranks{}", key, least, most,
      key == kShardGroupKey || key == kSecondaryKey ? ": give a number in the place of \"auto\""
                                                    : "");
}

// Throws ConfigError for a part of a tensor whose update is a function of the whole one.
void check_divided(std::string_view optimizer, std::span<const ParameterSpec> specs,
                   const EngineGroups& groups) {
  for (const ParameterSpec& spec : specs) {
    if (!spec.trainable || !spec.divided) continue;
    if (optimizer == "Muon" && spec.use_muon) {
      fail<ConfigError>(
          "parameter {} is divided among ranks (tensor parallelism), and Muon updates whole "
          "matrices: let AdamW update it (parameter.use_muon = False), or use AdamW, Adam, Lamb, "
          "Adagrad, Lion or SGD for all",
          spec.name);
    }
    if (optimizer == "Lamb" && groups.tensor == nullptr) {
      fail<ConfigError>(
          "parameter {} is divided among ranks (tensor parallelism), and Lamb needs its norm, but "
          "nothing says which ranks hold its other parts: expected an mpu with "
          "get_tensor_model_parallel_group()",
          spec.name);
    }
  }
}

// Throws ConfigError for groups that contradict each other or what the configuration asks for.
void check_groups(const Config& config, std::span<const ParameterSpec> specs, const Optimizer& rule,
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
  if (!rule.is_external()) check_divided(rule_name(config.optimizer), specs, groups);
  if (groups.parts.empty()) return;
  std::vector<std::string_view> refused = zeropp_keys(config.zero);
  if (config.zero.shard_group_size != 0) refused.push_back(kShardGroupKey);
  if (refused.empty()) return;
  fail<ConfigError>(
      "{}: not for a model with expert parallelism, whose experts have groups of their own: leave "
      "it out",
      fmt::join(refused, ", "));
}

// Makes the groups of ranks that share a copy, and of those that hold the same shard.
void split_copies(const ZeroConfig& zero, RankGroups& groups) {
  Communicator& comm = groups.comm;
  const RankPlace place{comm.world_size(), comm.rank(), shard_ranks_of(zero, comm.world_size())};
  if (place.replicas() == 1) return;
  const int replica = place.replica();
  const int shard = place.shard_rank();
  groups.shard_group = comm.split(replica, shard, fmt::format("shard group {}", replica));
  groups.replica_group = comm.split(shard, replica, fmt::format("replicas of shard {}", shard));
}

// Drops what saves nothing among these ranks; the first rank of the job says so. All groups do the
// same, also if only some of them are within a host: they add gradients bucket by bucket.
void resolve_zeropp(ZeroConfig& zero, const RankGroups& groups, Stream& stream) {
  const Communicator& job = groups.job();
  Communicator& shards = groups.shards();
  const std::vector<std::string_view> asked = zeropp_keys(zero);
  if (asked.empty()) return;
  const int64_t within_host = shards.local_world_size() == shards.world_size() ? 1 : 0;
  if (Agreement(groups.comm, stream).reduce(within_host, ReduceOp::min) == 1) {
    if (job.rank() == 0) {
      const bool alone = shards.world_size() == job.world_size();
      Logger(job.rank(), job.world_size())
          .warning("no effect: {} ({})", fmt::join(asked, ", "),
                   alone ? "less traffic between hosts; the ranks that share a copy of the model "
                           "are on one host"
                         : "the ranks of a shard group are on one host, and sums travel between "
                           "groups as they are");
    }
    zero = without_zeropp(zero);
    return;
  }
  if (zero.hpz_partition_size == kRanksOfHost) {
    zero.hpz_partition_size = ranks_of_host(shards, stream, kSecondaryKey);
  }
}

// Whether the same gathers are collectives on all ranks. Not if some groups are within a host,
// where ranks read each other's memory, and others are not.
bool gathers_alike(const EngineContext& context) {
  if (context.sharding.place.replicas() == 1 && context.groups.others.parts.empty()) return true;
  int64_t collective = context.groups.shards().reads_peers() ? 0 : 1;
  for (const Communicator* part : context.groups.others.parts) {
    collective = 2 * collective + (part->reads_peers() ? 0 : 1);
  }
  return Agreement(context.groups.comm, context.device.inline_stream()).is_same(collective);
}

// Otherwise the gather of a block would wait for the reduction of the block that backward has just
// left: calls of one communicator wait for each other, whatever their streams.
void add_gather_lanes(EngineContext& context) {
  if (!context.sharding.policy.shard_params || !*context.sharding.zero.overlap_comm) return;
  for (int ranks = 0; ranks <= std::ssize(context.groups.others.parts); ++ranks) {
    context.groups.gather_lanes.push_back(&context.groups.shards(ranks).second_lane("gathers"));
  }
}

// Groups for the two hops of quantized gradients.
void add_hops(EngineContext& context) {
  constexpr std::string_view kGradients = "/zero_optimization/zero_quantized_gradients";
  check_quantized_groups(context.sharding.place.replicas(), context.sharding.place.shard_ranks);
  Communicator& all = context.groups.shards();
  Stream& stream = context.device.inline_stream();
  context.sharding.place.host_ranks = static_cast<int>(ranks_of_host(all, stream, kGradients));
  const int host = all.rank() / context.sharding.place.host_ranks;
  const int number = all.rank() % context.sharding.place.host_ranks;
  context.groups.host_group = all.split(host, number, fmt::format("host {}", host));
  context.groups.cross_group = all.split(number, host, fmt::format("rank {} of each host", number));
  const int64_t here = context.groups.host_group->local_world_size();
  if (Agreement(all, stream).reduce(here, ReduceOp::min) < context.sharding.place.host_ranks) {
    fail<ConfigError>("{} is true, but the ranks of a host are not neighbours in rank order",
                      kGradients);
  }
}

}  // namespace

Buffer allocate_shared(Device& device, Communicator& ranks, size_t nbytes, Sharing sharing,
                       MemoryCategory category) {
  std::optional<Buffer> memory = ranks.allocate(nbytes, sharing);
  ZR_CHECK(memory || sharing == Sharing::per_host, "transport {} gives no per-rank memory",
           ranks.transport());
  if (!memory) return {};
  const auto parts = static_cast<size_t>(ranks.world_size());
  const size_t own = sharing == Sharing::per_host ? nbytes / parts : nbytes;
  struct Counted {
    std::shared_ptr<void> entry;
    Buffer memory;
  };
  auto counted =
      std::make_shared<Counted>(Counted{device.account(own, category), std::move(*memory)});
  std::byte* const data = counted->memory.data();
  return {data, nbytes, [counted = std::move(counted)] {}};
}

EngineContext make_context(const Config& config, std::span<const ParameterSpec> specs,
                           const Optimizer& rule, Device& device, Communicator& comm,
                           const EngineGroups& groups) {
  check_groups(config, specs, rule, comm, groups);
  Config resolved = config;
  ZeroConfig& zero = resolved.zero;
  if (zero.shard_group_size == kRanksOfHost) {
    zero.shard_group_size =
        zero.stage > 0 ? ranks_of_host(comm, device.inline_stream(), kShardGroupKey) : 0;
    if (zero.shard_group_size == 1 && comm.world_size() > 1 && comm.rank() == 0) {
      Logger(comm.rank(), comm.world_size())
          .warning("{} \"auto\" is 1, as each host has one rank: nothing is sharded",
                   kShardGroupKey);
    }
  }
  overlap_between_hosts(zero, comm.world_size(), comm.local_world_size());
  RankGroups rank_groups{comm, groups};
  split_copies(zero, rank_groups);
  resolve_zeropp(zero, rank_groups, device.inline_stream());
  EngineContext context{
      make_sharding(resolved, specs, rule, comm.world_size(), comm.rank(), device.is_host()),
      device, std::move(rank_groups)};
  for (const Communicator* part : groups.parts) {
    const int ranks = part->world_size();
    context.sharding.parts.push_back(
        {.world_size = ranks, .rank = part->rank(), .shard_ranks = ranks});
  }
  context.groups.compares_gathers = gathers_alike(context);
  if (context.sharding.place.has_secondary()) {
    const RankPlace& place = context.sharding.place;
    const int copy = place.shard_rank() / place.secondary_ranks;
    context.groups.secondary_group = context.groups.shards().split(
        copy, place.secondary_rank(), fmt::format("hpZ partition {}", copy));
  }
  if (zero.quantized_gradients) add_hops(context);
  add_gather_lanes(context);
  if (const auto dtype = config.precision.communication_dtype) {
    bound_link(comm, *dtype);
    if (context.groups.shard_group) bound_link(*context.groups.shard_group, *dtype);
    if (context.groups.replica_group) bound_link(*context.groups.replica_group, *dtype);
  }
  return context;
}

}  // namespace zerorun
