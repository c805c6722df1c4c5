// How the engine's ranks form groups.
#include <fmt/ranges.h>

#include <string_view>
#include <vector>

#include "comm/agreement.h"
#include "comm/link_bound.h"
#include "core/check.h"
#include "core/log.h"
#include "zero/link_savings.h"
#include "zero/sharding.h"

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

// The groups of ranks that share a copy, and of those that hold the same shard.
struct Groups {
  Groups(const ZeroConfig& zero, Communicator& comm) {
    const RankPlace place{comm.world_size(), comm.rank(), shard_ranks_of(zero, comm.world_size())};
    if (place.replicas() == 1) return;
    const int replica_number = place.replica();
    const int shard_number = place.shard_rank();
    shard = comm.split(replica_number, shard_number, fmt::format("shard group {}", replica_number));
    replica =
        comm.split(shard_number, replica_number, fmt::format("replicas of shard {}", shard_number));
  }
  Communicator& shards(Communicator& comm) const { return shard ? *shard : comm; }

  std::shared_ptr<Communicator> shard;
  std::shared_ptr<Communicator> replica;
};

// Drops what saves nothing among these ranks, and says so.
void resolve_link_savings(ZeroConfig& zero, Communicator& shards, Stream& stream) {
  const std::vector<std::string_view> asked = link_savings(zero);
  if (asked.empty()) return;
  if (shards.local_world_size() == shards.world_size()) {
    Logger(shards.rank(), shards.world_size())
        .warning(
            "no effect: {} (less traffic between hosts; the ranks that share a copy of the model "
            "are on one host)",
            fmt::join(asked, ", "));
    zero = without_link_savings(zero);
    return;
  }
  if (zero.hpz_partition_size == kRanksOfHost) {
    zero.hpz_partition_size = ranks_of_host(shards, stream, kSecondaryKey);
  }
}

// Groups for the two hops of quantized gradients.
void add_hops(EngineContext& context) {
  constexpr std::string_view kGradients = "/zero_optimization/zero_quantized_gradients";
  if (context.replicas() > 1) {
    fail<ConfigError>(
        "{} is true, but {} has {} groups of {} ranks, which add their sums as they are; leave one "
        "of them out",
        kGradients, kShardGroupKey, context.replicas(), context.shard_ranks);
  }
  Communicator& all = context.shards();
  Stream& stream = context.device.inline_stream();
  context.host_ranks = static_cast<int>(ranks_of_host(all, stream, kGradients));
  const int host = all.rank() / context.host_ranks;
  const int number = all.rank() % context.host_ranks;
  context.host_group = all.split(host, number, fmt::format("host {}", host));
  context.cross_group = all.split(number, host, fmt::format("rank {} of each host", number));
  const int64_t here = context.host_group->local_world_size();
  if (Agreement(all, stream).reduce(here, ReduceOp::min) < context.host_ranks) {
    fail<ConfigError>("{} is true, but the ranks of a host are not neighbours in rank order",
                      kGradients);
  }
}

}  // namespace

EngineContext make_context(const Config& config, std::span<const ParameterSpec> specs,
                           const Optimizer& rule, Device& device, Communicator& comm) {
  Config resolved = config;
  ZeroConfig& zero = resolved.zero;
  if (zero.shard_group_size == kRanksOfHost) {
    zero.shard_group_size =
        zero.stage > 0 ? ranks_of_host(comm, device.inline_stream(), kShardGroupKey) : 0;
  }
  const Groups groups(zero, comm);
  Communicator& shards = groups.shards(comm);
  resolve_link_savings(zero, shards, device.inline_stream());
  EngineContext context{
      make_sharding(resolved, specs, rule, comm.world_size(), comm.rank(), device.is_host()),
      device, comm, groups.shard, groups.replica};
  if (context.has_second_copy()) {
    const int copy = context.shard_rank() / context.secondary_ranks;
    context.secondary_group =
        context.shards().split(copy, context.secondary_rank(), fmt::format("second copy {}", copy));
  }
  if (zero.quantized_gradients) add_hops(context);
  if (const auto dtype = config.precision.communication_dtype) {
    bound_link(comm, *dtype);
    if (context.shard_group) bound_link(*context.shard_group, *dtype);
    if (context.replica_group) bound_link(*context.replica_group, *dtype);
  }
  return context;
}

}  // namespace zerorun
