#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "zero/partition/sharded_model.h"
#include "zerorun/config.h"
#include "zerorun/device.h"
#include "zerorun/engine.h"

namespace zerorun {

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

// Plans the memory of rank 0. Throws ConfigError like Engine::create.
MemoryPlan plan_memory(const Config& config, std::span<const ParameterSpec> specs,
                       const HostLayout& layout);
// The same for a model that is sharded for these ranks, with the settings of resolve_groups().
MemoryPlan plan_memory(const ShardedModel& sharded, const HostLayout& layout);

}  // namespace zerorun
