#pragma once

#include <cstdint>
#include <string>

namespace zerorun {

// What `zerorun plan` is asked; sizes as text ("80GB", "24GiB"), empty: not given.
struct PlanOptions {
  std::string config;  // of what is not given, the default of the bundled program
  std::string model;
  int world_size = 1;
  int ranks_per_host = 0;  // 0: all
  bool cpu = false;        // CPU ranks: "device" is host memory
  std::string device_memory, host_memory, disk;
  std::string nvme_path;  // for settings with NVMe; empty: that of the config
  int64_t micro_batch = 0;
  int64_t seq_len = 0;
  bool recompute = false;
  std::string fit;  // where to write the fastest configuration that fits
};

// "80GB" -> 80e9, "24GiB" or "24G" -> 24 * 2^30. Throws ConfigError naming `option`.
int64_t parse_bytes(const std::string& text, const std::string& option);

// Bytes per rank by category for the configuration, and a table over stages and offload settings.
// Writes the file of `fit`; throws ConfigError when nothing fits, naming the smallest need.
std::string plan_report(const PlanOptions& options);

}  // namespace zerorun
