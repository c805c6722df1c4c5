#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "zerorun/config.h"
#include "zerorun/engine.h"

namespace zerorun {

// The hosts of the ranks.
struct HostLayout {
  int world_size = 1;
  int ranks_per_host = 1;
  bool cpu = false;  // ranks on CPUs, else on GPUs

  int hosts() const { return (world_size + ranks_per_host - 1) / ranks_per_host; }
};

// Bytes of buckets that a step sends over the link of one host; it receives as many.
struct LinkTraffic {
  int64_t gradients = 0;   // with their sums
  int64_t parameters = 0;  // gathered ones
};

// On CPU ranks each byte crosses once for each host (comm/hierarchical). NCCL is taken to use
// rings, each of which leaves a host once.
LinkTraffic plan_link(const Config& config, std::span<const ParameterSpec> specs,
                      const HostLayout& layout);

// The traffic at every stage; empty for one host.
std::string link_table(const Config& config, std::span<const ParameterSpec> specs,
                       const HostLayout& layout);

}  // namespace zerorun
