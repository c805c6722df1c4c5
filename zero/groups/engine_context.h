#pragma once

#include <memory>
#include <span>

#include "zero/partition/sharding.h"
#include "zerorun/communicator.h"
#include "zerorun/device.h"

namespace zerorun {

// The facts and services that every part of the engine needs; constant after construction.
struct EngineContext : Sharding {
  Device& device;
  Communicator& comm;  // of all ranks that have this part of the model
  // `shard_group`: the ranks that share this rank's copy; `replica_group`: those that hold the same
  // shard. Both are null where there is one copy.
  std::shared_ptr<Communicator> shard_group{};
  std::shared_ptr<Communicator> replica_group{};
  // The ranks that share a second copy of parameters; null where there is none.
  std::shared_ptr<Communicator> secondary_group{};
  // The hops of quantized gradients: this host's ranks, and those with this rank's number on their
  // hosts. Null unless gradients are quantized and the ranks span hosts.
  std::shared_ptr<Communicator> host_group{};
  std::shared_ptr<Communicator> cross_group{};
  EngineGroups groups{};

  // The ranks that step together.
  Communicator& job() const { return groups.job != nullptr ? *groups.job : comm; }
  // `all`: the ranks that have a parameter; `shards`: those that share one copy of it.
  Communicator& all(int ranks) const {
    return ranks == 0 ? comm : *groups.parts.at(static_cast<size_t>(ranks) - 1);
  }
  Communicator& shards(int ranks = 0) const {
    return ranks == 0 && shard_group ? *shard_group : all(ranks);
  }
};

// The sharding of `config` with its groups of ranks. Collective. Throws ConfigError as
// make_sharding.
EngineContext make_context(const Config& config, std::span<const ParameterSpec> specs,
                           const Optimizer& rule, Device& device, Communicator& comm,
                           const EngineGroups& groups);

}  // namespace zerorun
