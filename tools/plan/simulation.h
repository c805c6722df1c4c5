#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "tools/plan/cluster.h"
#include "zerorun/config.h"
#include "zerorun/engine.h"

namespace zerorun {

// A step of a rank on a cluster, as the same code that trains cuts and orders it.
struct SimulatedStep {
  int64_t link_bytes = 0;  // as CallCost
  int64_t link_messages = 0;
  int64_t near_bytes = 0;
  int64_t messages = 0;
  double compute_s = 0.0;
  double communication_s = 0.0;
  double exposed_s = 0.0;  // of that, while no computation goes on
  double sending_s = 0.0;  // of cores that send and receive instead of computing
  double seconds() const { return compute_s + exposed_s + sending_s; }
};

// `tokens`: of a rank in a micro-step. The stream of collectives does one after the other: gathers
// one module ahead of their use, reductions when backward has passed their bucket.
SimulatedStep simulate_step(const Config& config, std::span<const ParameterSpec> specs,
                            const Cluster& cluster, int64_t tokens);

// The step at the configuration, what grows with the number of ranks, and the step with other
// stages, shard groups and second copies, the fastest first. Settings that need more than
// `device_memory` are left out.
std::string simulation_report(const Config& config, std::span<const ParameterSpec> specs,
                              const Cluster& cluster, int64_t tokens,
                              std::optional<int64_t> device_memory);

}  // namespace zerorun
