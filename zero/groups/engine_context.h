#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/log.h"
#include "zero/partition/sharding.h"
#include "zerorun/communicator.h"
#include "zerorun/device.h"

namespace zerorun {

// The communicators of an engine's groups of ranks.
struct RankGroups {
  Communicator& comm;  // of all ranks that have the same part of the model
  EngineGroups others{};
  // `shard_group`: the ranks that share one copy with this rank. `replica_group`: the ranks that
  // hold the same shard of other copies. Both are null if there is one copy.
  std::shared_ptr<Communicator> shard_group{};
  std::shared_ptr<Communicator> replica_group{};
  // The ranks of an hpZ (secondary) partition of the parameters; null if there is none.
  std::shared_ptr<Communicator> secondary_group{};
  // The groups of the two steps of quantized reductions: this host's ranks, and the ranks with the
  // same index on their hosts. Null unless gradients are quantized and the ranks span hosts.
  std::shared_ptr<Communicator> host_group{};
  std::shared_ptr<Communicator> cross_group{};
  // By BucketPlan::ranks: the second lane of shards(ranks), if gathers of sharded parameters run
  // beside reductions. Empty: they do not.
  std::vector<Communicator*> gather_lanes{};
  // The same gathers are collectives on all ranks, so that their order can be compared.
  bool compares_gathers = true;

  // All ranks that step together, with all parts of the model.
  Communicator& job() const { return others.job != nullptr ? *others.job : comm; }
  // `all`: the ranks that hold a parameter. `shards`: those of them that share one copy of it.
  // `ranks`: see ParameterSpec::ranks.
  Communicator& all(int ranks) const {
    return ranks == 0 ? comm : *others.parts.at(static_cast<size_t>(ranks) - 1);
  }
  Communicator& shards(int ranks = 0) const {
    return ranks == 0 && shard_group ? *shard_group : all(ranks);
  }
  // The communicator of shards(ranks) that gathers sharded parameters.
  Communicator& gathers(int ranks = 0) const {
    return gather_lanes.empty() ? shards(ranks) : *gather_lanes.at(static_cast<size_t>(ranks));
  }
};

// What the parts of an engine share. Constant after construction.
struct EngineContext {
  Sharding sharding;
  Device& device;
  RankGroups groups;

  Logger log() const { return {sharding.place.rank, sharding.place.world_size}; }
};

// Allocates memory that `ranks` share and `device` counts; empty if the transport does not support
// it, which only per_host may mean. Collective.
Buffer allocate_shared(Device& device, Communicator& ranks, size_t nbytes, Sharing sharing,
                       MemoryCategory category);

// Makes the sharding of `config` and its groups of ranks. Collective. Throws ConfigError like
// make_sharding.
EngineContext make_context(const Config& config, std::span<const ParameterSpec> specs,
                           const Optimizer& rule, Device& device, Communicator& comm,
                           const EngineGroups& groups);

}  // namespace zerorun
