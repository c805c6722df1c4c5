#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "zerorun/config.h"
#include "zerorun/engine.h"

namespace zerorun {

// How ranks are distributed over hosts.
struct HostLayout {
  int world_size = 1;
  int ranks_per_host = 1;
  bool cpu = false;  // true: CPU ranks, false: GPU ranks

  int hosts() const { return (world_size + ranks_per_host - 1) / ranks_per_host; }
};

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

}  // namespace zerorun
