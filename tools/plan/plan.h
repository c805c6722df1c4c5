#pragma once

#include <cstdint>
#include <string>

namespace zerorun {

// The question to `zerorun plan`. Sizes are text ("80GB", "24GiB"), empty when not given.
// Micro-batches come from here, else from the configuration, else from the bundled program.
struct PlanOptions {
  std::string config;  // as load_config takes it; empty: stage 2, bf16, AdamW
  std::string model;
  int world_size = 1;
  int ranks_per_host = 0;  // 0, or more than there are: all
  bool cpu = false;        // CPU ranks: "device" is host memory
  std::string device_memory, host_memory, disk;
  std::string nvme_path;  // for settings with NVMe; empty: that of the config
  int64_t micro_batch = 0;
  int64_t seq_len = 0;
  bool recompute = false;
  std::string fit;  // where to write the fastest configuration that fits
  bool json = false;
  // A cluster instead of ranks and hosts, as parse_cluster and parse_rate take it; empty: none.
  std::string simulate, link, nvlink, link_cpu;
  double latency_us = 5.0;  // of a message between hosts
  double tflops = 0.0;      // of a GPU
};

// Bytes per rank by category for the configuration, and a table over stages and offload settings.
// With `simulate`: what a step there costs, and which groups cost least (tools/plan/simulation.h).
// As JSON: the table alone. Writes the file of `fit`, with the micro-batch that it fits with;
// throws ConfigError when nothing in the table fits, naming what is closest.
std::string plan_report(const PlanOptions& options);

}  // namespace zerorun
