#pragma once

#include <cstdint>
#include <vector>

#include "tools/plan/step_calls.h"

namespace zerorun {

// A group of ranks from the point of view of one of its hosts.
struct HostGroup {
  int64_t ranks = 1;  // ranks of the group
  int64_t near = 1;   // ranks of the group on this host
  int64_t hosts = 1;  // hosts of the group
};

// Returns the groups that the ranks of a job form for a collective, for each distinct kind of host.
// Groups of neighbouring ranks may begin on one host and end on another.
std::vector<std::vector<HostGroup>> groups_on_hosts(const CallRanks& ranks, int world_size,
                                                    int ranks_per_host);

}  // namespace zerorun
