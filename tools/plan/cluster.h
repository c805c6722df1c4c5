#pragma once

#include <cstdint>
#include <string>

#include "tools/plan/plan.h"
#include "tools/plan/step_calls.h"

namespace zerorun {

// Hosts as `zerorun plan --simulate` takes them; what is said of GPUs is of CPU ranks where these
// are.
struct Cluster {
  int hosts = 1;
  int gpus = 8;                // of a host
  bool cpu = false;            // they are CPU ranks
  int world_size = 0;          // 0: all; else the last host may have fewer
  double link = 0.0;           // bytes a second of a host's link, each way
  double nvlink = 0.0;         // of a GPU's links within its host
  double link_cpu = 0.0;       // bytes a second that CPU ranks' cores send and receive; 0: no limit
  double latency = 5e-6;       // seconds of a message between hosts
  double near_latency = 1e-6;  // of one within a host
  double flops = 0.0;          // operations a second of a GPU; 0: computation takes no time

  int ranks() const { return world_size > 0 ? world_size : hosts * gpus; }
};

// "hosts=1280,gpus=8", "hosts=2,cpus=2". Throws ConfigError.
Cluster parse_cluster(const std::string& text);
// "400Gbit", "400Gbit/s" or "450GB/s" as bytes a second. Throws ConfigError naming `option`.
double parse_rate(const std::string& text, const std::string& option);

// Reads the cluster from --simulate, --link, --nvlink and their like. Throws ConfigError.
Cluster cluster_of(const PlanOptions& options);

// The cost of one collective on a cluster: rings for reductions and gathers, each of which leaves a
// host once, and one message to each peer for all_to_all; among CPU ranks what comm/hierarchical
// sends. A message takes its latency and its bytes over the rate (the alpha-beta model). Groups on
// one host share its link; the host counts that sends most.
struct CallCost {
  double seconds = 0.0;
  int64_t link_bytes = 0;     // over a host's link, each way
  int64_t near_bytes = 0;     // that a rank sends within its host
  int64_t link_messages = 0;  // over a host's link
  int64_t messages = 0;       // that a rank sends
};
CallCost cost_of(const StepCall& call, const Cluster& cluster);

}  // namespace zerorun
