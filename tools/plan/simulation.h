#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "tools/plan/cluster.h"
#include "zero/memory_plan.h"
#include "zerorun/config.h"
#include "zerorun/engine.h"

namespace zerorun {

// Bytes of buckets that a step sends over the link of one host. The host receives as many.
struct LinkTraffic {
  int64_t gradients = 0;   // gradients and their sums
  int64_t parameters = 0;  // gathered parameters
};

// Computes the traffic. With CPU ranks each byte crosses the link of each host once
// (comm/hierarchical). NCCL is assumed to use rings, each of which leaves a host once.
LinkTraffic plan_link(const Config& config, std::span<const ParameterSpec> specs,
                      const HostLayout& layout);

// Returns a table of the traffic at every stage; "" for a single host.
std::string link_table(const Config& config, std::span<const ParameterSpec> specs,
                       const HostLayout& layout);

// The simulated step of a rank on a cluster. Buckets and their order come from the code that
// trains.
struct SimulatedStep {
  int64_t link_bytes = 0;  // as in CallCost
  int64_t link_messages = 0;
  int64_t near_bytes = 0;
  int64_t messages = 0;
  double compute_s = 0.0;
  double communication_s = 0.0;
  double exposed_s = 0.0;  // time of communication that is not overlapped with computation
  double cores_s = 0.0;    // time that cores spend on communication instead of computation
  double seconds() const { return compute_s + exposed_s + cores_s; }
};

// `tokens` is the number of tokens of a rank in a micro-step. Gathers begin one module ahead of
// their use, reductions when backward has passed their bucket. On CPU ranks collectives run one
// after the other. On GPUs a gather does not wait for the reductions before it: they take place at
// the same time if only one of them is between hosts. On the same links they cannot; the gather
// then goes first and the reduction ends so much later.
SimulatedStep simulate_step(const Config& config, std::span<const ParameterSpec> specs,
                            const SimulatedCluster& cluster, int64_t tokens);

// Returns a report about the step with this configuration, costs that grow with the number of
// ranks, and steps with other stages, shard groups and hpZ, the fastest first. Settings
// that need more than `device_memory` are omitted.
std::string simulation_report(const Config& config, std::span<const ParameterSpec> specs,
                              const SimulatedCluster& cluster, int64_t tokens,
                              std::optional<int64_t> device_memory);

// Returns the bytes of the manifest of a checkpoint: its tables of parameters and files. Texts of
// the program (configuration, client state) are not included.
int64_t plan_manifest(const ShardedModel& model);

}  // namespace zerorun
