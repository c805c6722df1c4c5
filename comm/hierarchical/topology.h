#pragma once

#include <string>
#include <vector>

#include "comm/group_options.h"

namespace zerorun {

// Ranks and the hosts that they share. Hosts count from the one with rank 0 on, in the order of
// their lowest ranks.
class Topology {
 public:
  // Collective: ranks tell each other through the store where they are. Throws CommError that names
  // those who did not come.
  static Topology discover(const GroupOptions& options);
  // `names`: of the host of each rank.
  explicit Topology(const std::vector<std::string>& names);

  int hosts() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& ranks_of(int host) const { return ranks_[static_cast<size_t>(host)]; }
  int host_of(int rank) const { return places_[static_cast<size_t>(rank)].host; }
  // The number of a rank among those of its host.
  int local_rank(int rank) const { return places_[static_cast<size_t>(rank)].number; }
  // The rank of `host` that sends and receives what its host has to do with `owner`, a rank of
  // another one. So the ranks of a host share its traffic.
  int relay(int host, int owner) const {
    const std::vector<int>& ranks = ranks_of(host);
    return ranks[static_cast<size_t>(local_rank(owner)) % ranks.size()];
  }
  // "rank 1 (pid 123 on a)"
  std::string name_of_rank(int rank) const;

 private:
  struct Place {
    int host = 0;
    int number = 0;
  };
  std::vector<std::vector<int>> ranks_;
  std::vector<Place> places_;
  // By rank; empty where they did not tell each other.
  std::vector<std::string> seen_as_;  // "123 on a"
  std::vector<int> numbers_;          // in the job; empty: the same
};

}  // namespace zerorun
