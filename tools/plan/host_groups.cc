#include "tools/plan/host_groups.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace zerorun {

std::vector<std::vector<HostGroup>> groups_on_hosts(const CallRanks& ranks, int world_size,
                                                    int ranks_per_host) {
  const int64_t count = ranks.count;
  const int64_t distance = ranks.distance;
  const int64_t per_host = ranks_per_host;
  const int64_t block = count * distance;  // in which the groups lie that are entwined
  const int64_t near = std::clamp<int64_t>(per_host / distance, 1, count);
  const bool aligned = world_size % per_host == 0 && count % near == 0 &&
                       (per_host % distance == 0 || distance % per_host == 0) &&
                       (block % per_host == 0 || per_host % block == 0);
  if (aligned) {
    const HostGroup group{count, near, count / near};
    return {std::vector<HostGroup>(static_cast<size_t>(per_host / near), group)};
  }
  // The pattern repeats where a host and a block begin at the same rank.
  const int64_t period = std::min<int64_t>(world_size, std::lcm(per_host, block));
  std::map<int64_t, std::map<int64_t, int64_t>> near_of;  // by group, by host
  for (int64_t rank = 0; rank < period; ++rank) {
    const int64_t group = rank / block * distance + rank % distance;
    ++near_of[group][rank / per_host];
  }
  std::vector<std::vector<HostGroup>> hosts(
      static_cast<size_t>((period + per_host - 1) / per_host));
  for (const auto& [group, parts] : near_of) {
    for (const auto& [host, here] : parts) {
      hosts[static_cast<size_t>(host)].push_back({count, here, static_cast<int64_t>(parts.size())});
    }
  }
  return hosts;
}

}  // namespace zerorun
