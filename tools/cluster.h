#pragma once

#include <cstdint>
#include <string>

#include "tools/plan.h"
#include "tools/step_calls.h"

namespace zerorun {

// Hosts of GPUs as `zerorun plan --simulate` takes them.
struct Cluster {
  int hosts = 1;
  int gpus = 8;                // of a host
  double link = 0.0;           // bytes a second of a host's link, each way
  double nvlink = 0.0;         // of a GPU's links within its host
  double latency = 5e-6;       // seconds of a message between hosts
  double near_latency = 1e-6;  // of one within a host
  double flops = 0.0;          // operations a second of a GPU; 0: computation takes no time

  int ranks() const { return hosts * gpus; }
};

// "hosts=1280,gpus=8". Throws ConfigError.
Cluster parse_cluster(const std::string& text);
// "400Gbit", "400Gbit/s" or "450GB/s" as bytes a second. Throws ConfigError naming `option`.
double parse_rate(const std::string& text, const std::string& option);

// That of the options --simulate, --link, --nvlink and what goes with them. Throws ConfigError.
Cluster cluster_of(const PlanOptions& options);

// What one collective costs on a cluster: rings for reductions and gathers, each of which leaves a
// host once, and one message to each peer for all_to_all. A message takes its latency and its bytes
// over the rate (the alpha-beta model). Groups that are not neighbours share their host's link.
struct CallCost {
  double seconds = 0.0;
  int64_t link_bytes = 0;     // over a host's link, each way
  int64_t near_bytes = 0;     // that a rank sends within its host
  int64_t link_messages = 0;  // over a host's link
  int64_t messages = 0;       // that a rank sends
};
CallCost cost_of(const StepCall& call, const Cluster& cluster);

}  // namespace zerorun
