#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "zerorun/config.h"
#include "zerorun/device.h"
#include "zerorun/engine.h"

namespace zerorun {

// The memory of an engine on one rank, in bytes by purpose. Computed with the functions that also
// size the engine's allocations.
struct MemoryPlan {
  // On the device.
  int64_t parameters = 0;
  int64_t second_copy = 0;  // of the parameters, for gathers within a host (hpZ)
  int64_t gradients = 0;
  int64_t masters = 0;
  int64_t moments = 0;   // optimizer states without masters
  int64_t buckets = 0;   // gradients before and during reduction, at most
  int64_t gathered = 0;  // full parameters at stage 3, at most
  // Elsewhere.
  int64_t pinned = 0;  // host memory
  int64_t nvme = 0;    // files

  int64_t device() const {
    return parameters + second_copy + gradients + masters + moments + buckets + gathered;
  }
  // The device's bytes by the categories in which a Device counts its memory.
  std::array<int64_t, kMemoryCategories> by_category() const;
};

// Plans the memory of rank 0 of `world_size` ranks. `shared_host`: the ranks are CPU ranks of one
// host, which can keep one shared copy of stage 3's parameters; otherwise each rank has a device of
// its own. `host_ranks`: ranks per host, which quantized gradients are added over first. Throws
// ConfigError like Engine::create.
MemoryPlan plan_memory(const Config& config, std::span<const ParameterSpec> specs, int world_size,
                       bool shared_host, int host_ranks = 1);

}  // namespace zerorun
