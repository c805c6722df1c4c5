#pragma once

#include <cstdint>
#include <span>
#include <string>

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

}  // namespace zerorun
