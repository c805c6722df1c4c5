#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "optim/optimizer.h"
#include "zero/partition/bucket.h"
#include "zero/partition/model_spec.h"
#include "zero/partition/sharding.h"
#include "zerorun/config.h"
#include "zerorun/device.h"
#include "zerorun/engine.h"

namespace zerorun {

// How an engine on rank 0 would shard a model, without allocating memory or communicating.
struct ShardedModel {
  // Throws ConfigError where Engine::create would.
  ShardedModel(const Config& config, std::span<const ParameterSpec> parameters, int world_size,
               bool computes_on_host);
  ShardedModel(const ShardedModel&) = delete;  // `sharding` refers to `model`
  ShardedModel& operator=(const ShardedModel&) = delete;

  const std::vector<Optimizer> rules;
  const ModelSpec model;
  const Sharding sharding;
  const std::vector<Bucket> buckets;
  const bool
      bounds_link;  // communication_data_type is also what crosses between hosts of CPU ranks
};

// The memory of an engine on one rank, in bytes by purpose. Computed with the functions that also
// size the engine's allocations.
struct MemoryPlan {
  // On the device.
  int64_t parameters = 0;
  int64_t secondary = 0;  // the hpZ (secondary) partition of the parameters
  int64_t gradients = 0;
  int64_t masters = 0;
  int64_t moments = 0;   // optimizer states without masters
  int64_t buckets = 0;   // gradients before and during reduction, at most
  int64_t gathered = 0;  // full parameters at stage 3, at most
  // Elsewhere.
  int64_t pinned = 0;  // host memory
  int64_t nvme = 0;    // files

  int64_t device() const {
    return parameters + secondary + gradients + masters + moments + buckets + gathered;
  }
  // The device's bytes by the categories in which a Device counts its memory.
  std::array<int64_t, kMemoryCategories> by_category() const;
};

// How ranks are distributed over hosts.
struct HostLayout {
  int world_size = 1;
  int ranks_per_host = 1;
  bool cpu = false;  // true: CPU ranks, false: GPU ranks

  int hosts() const { return (world_size + ranks_per_host - 1) / ranks_per_host; }
};

// The part of an engine's memory that it has from its start to its end: all but `buckets` in flight
// and `gathered`.
MemoryPlan plan_states(const Sharding& sharding, std::span<const Optimizer> rules,
                       std::span<const Bucket> buckets);
// Plans the memory of rank 0. Throws ConfigError like Engine::create.
MemoryPlan plan_memory(const Config& config, std::span<const ParameterSpec> specs,
                       const HostLayout& layout);
// The same for a model that is sharded for these ranks, with the settings of resolve_groups().
MemoryPlan plan_memory(const ShardedModel& sharded, const HostLayout& layout);

// The settings that determine how much device memory an engine needs.
struct MemorySettings {
  int stage = 0;
  bool offload_optimizer = false;
  bool offload_param = false;
};
MemorySettings memory_settings(const Config& config);

// Makes the function that advises about settings after an allocation failed. Given the bytes that
// are missing, it names each further setting that would free enough by itself or, if none would,
// all of them if they would together.
MemoryAdviser memory_adviser(const MemorySettings& settings);

}  // namespace zerorun
