#pragma once

#include <cstdint>
#include <vector>

#include "tools/plan/step_calls.h"

namespace zerorun {

// A group of ranks as one host of it sees it.
struct HostGroup {
  int64_t ranks = 1;  // of the group
  int64_t near = 1;   // of these on the host
  int64_t hosts = 1;  // that the group is on
};

// The groups that the ranks of a job form for a collective, on each host: one entry for every kind
// of host that there is. Groups of neighbours may begin on one host and end on another.
std::vector<std::vector<HostGroup>> groups_on_hosts(const CallRanks& ranks, int world_size,
                                                    int ranks_per_host);

}  // namespace zerorun
