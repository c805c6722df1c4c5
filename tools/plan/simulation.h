#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/plan/plan.h"
#include "zero/memory_plan.h"
#include "zerorun/communicator.h"
#include "zerorun/config.h"
#include "zerorun/engine.h"

namespace zerorun {

// A cluster for `zerorun plan --simulate`. With CPU ranks, members about GPUs describe the CPU
// ranks.
struct SimulatedCluster {
  int hosts = 1;
  int gpus = 8;         // GPUs (or CPU ranks) per host
  bool cpu = false;     // the ranks are CPU ranks
  int world_size = 0;   // number of ranks; 0: all; the last host may have fewer
  double link = 0.0;    // bandwidth of a host's link in bytes per second and direction
  double nvlink = 0.0;  // bandwidth between the GPUs of a host, per GPU
  // bytes per second that the cores of CPU ranks can send and receive; 0: no limit
  double link_cpu = 0.0;
  double latency = 5e-6;       // latency of a message between hosts in seconds
  double near_latency = 1e-6;  // latency of a message within a host
  double flops = 0.0;          // operations per second of a GPU; 0: computation takes no time

  int ranks() const { return world_size > 0 ? world_size : hosts * gpus; }
};

// Parses "hosts=1280,gpus=8" or "hosts=2,cpus=2". Throws ConfigError.
SimulatedCluster parse_cluster(const std::string& text);
// Parses "400Gbit", "400Gbit/s" or "450GB/s" to bytes per second. Throws ConfigError that names
// `option`.
double parse_rate(const std::string& text, const std::string& option);

// Builds the cluster from --simulate, --link, --nvlink and related options. Throws ConfigError.
SimulatedCluster cluster_of(const PlanOptions& options);

// The ranks of a collective: their number, and their distance in rank order (1: consecutive ranks).
struct CallRanks {
  int count = 1;
  int distance = 1;
};

// A collective of a step, which every rank makes within its group.
struct StepCall {
  enum class Phase : uint8_t { forward, backward, step };

  Collective op = Collective::barrier;
  CallRanks ranks;
  int64_t bytes = 0;  // bytes of the full tensor, as in CollectiveCount
  // For a reduction between hosts of CPU ranks: the bytes as sums of a host's ranks, and as
  // results.
  int64_t sums = 0;
  int64_t results = 0;
  // If it sends fewer bits: bytes of the values, in their own dtype, that a rank quantizes and
  // dequantizes for it.
  int64_t quantized = 0;
  // For Muon's directions, of which each rank has as much as the cuts say: elements of fp32.
  std::shared_ptr<const Cuts> cuts{};
  int round = -1;   // on GPUs such calls with the same number start together
  int bucket = -1;  // -1: no bucket
  Phase phase = Phase::step;
  int64_t micro_step = 0;
};

// Returns all large collectives of a step in order: gathers before use, reductions in backward, and
// gathers of updated parameters. (The norm and the barrier of a step are small.) `host_ranks` is
// the number of ranks per host.
std::vector<StepCall> step_calls(const ShardedModel& model, int host_ranks);

// The cost of a collective on a cluster. GPUs use rings for reductions and gathers, each of which
// leaves a host once, and one message to each peer for all_to_all; CPU ranks send what
// comm/hierarchical sends. The time of a message is its latency plus its bytes divided by the
// bandwidth (alpha-beta model). Groups on one host share its link; the host that sends the most
// determines the cost.
struct CallCost {
  double seconds = 0.0;
  int64_t link_bytes = 0;     // bytes over a host's link per direction
  int64_t near_bytes = 0;     // bytes that a rank sends within its host
  int64_t link_messages = 0;  // messages over a host's link
  int64_t messages = 0;       // messages that a rank sends
};
CallCost cost_of(const StepCall& call, const SimulatedCluster& cluster);
// The cost of exchanges of Muon's directions that start together: the host, or rank, that sends or
// receives the most determines it.
CallCost cost_of_exchanges(std::span<const StepCall> calls, const SimulatedCluster& cluster);

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
