#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "zerorun/config.h"
#include "zerorun/device.h"
#include "zerorun/engine.h"

namespace zerorun {

// Bytes that an engine holds on one rank, by what they are for. The same formulas that allocate.
struct MemoryPlan {
  // On the device.
  int64_t parameters = 0;
  int64_t second_copy = 0;  // of parameters, for gathers within a host (hpZ)
  int64_t gradients = 0;
  int64_t masters = 0;
  int64_t moments = 0;   // the optimizer's states
  int64_t buckets = 0;   // gradients in flight, at most
  int64_t gathered = 0;  // full parameters of stage 3, at most
  // Elsewhere.
  int64_t pinned = 0;  // host memory
  int64_t nvme = 0;    // of files

  int64_t device() const {
    return parameters + second_copy + gradients + masters + moments + buckets + gathered;
  }
  // As a device's ledger has it.
  std::array<int64_t, kMemoryCategories> by_category() const;
};

// For rank 0 of `world_size` ranks. `shared_host`: ranks are CPU ranks of one host, which may have
// the parameters of stage 3 in memory that all of them see; if not, each has a device. `host_ranks`
// are on a host: quantized gradients are added there first. Throws ConfigError as Engine::create.
MemoryPlan plan_memory(const Config& config, std::span<const ParameterSpec> specs, int world_size,
                       bool shared_host, int host_ranks = 1);

}  // namespace zerorun
