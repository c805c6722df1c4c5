#pragma once

#include <cstdint>
#include <string>

namespace zerorun {

// The options of `zerorun plan`. Sizes are text ("80GB", "24GiB"), empty if not given. The
// micro-batch size is that of the options, else of the configuration, else the default of the
// bundled program.
// size: one option each
struct PlanOptions {
  std::string config;  // argument of load_config; empty: stage 2, bf16, AdamW
  std::string model;
  int world_size = 1;
  int ranks_per_host = 0;  // 0 or more than there are: all
  bool cpu = false;        // CPU ranks: "device" is host memory
  std::string device_memory, host_memory, disk;
  std::string nvme_path;  // folder for settings with NVMe; empty: that of the config
  int64_t micro_batch = 0;
  int64_t seq_len = 0;
  bool recompute = false;
  bool fast_attention = false;
  std::string fit;  // file for the fastest configuration that fits
  bool json = false;
  // A cluster to simulate, in the form that parse_cluster and parse_rate accept; empty: none.
  std::string simulate, link, nvlink, link_cpu;
  double latency_us = 5.0;  // latency of a message between hosts, in microseconds
  double tflops = 0.0;      // 10^12 operations per second of a GPU
};

// Returns the bytes per rank by category for the configuration, and a table of stages and offload
// settings. With `simulate` also the cost of a step on that cluster and the cheapest groups
// (tools/plan/simulation.h). With `json` only the table, as JSON. Writes the file `fit`, with the
// micro-batch size for which it fits. Throws ConfigError if nothing in the table fits, naming the
// closest setting.
std::string plan_report(const PlanOptions& options);

}  // namespace zerorun
