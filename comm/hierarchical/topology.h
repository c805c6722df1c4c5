#pragma once

#include <string>
#include <vector>

#include "comm/group_options.h"

namespace zerorun {

// Which ranks are on which hosts. Hosts are numbered from 0 in the order of their lowest ranks, so
// rank 0 is on host 0.
class Topology {
 public:
  // Collective: each rank publishes its host in options.store. Throws CommError that names the
  // ranks that did not.
  static Topology discover(const GroupOptions& options);
  // `names`: by rank, the name of its host.
  explicit Topology(const std::vector<std::string>& names);

  int hosts() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& ranks_of(int host) const { return ranks_[static_cast<size_t>(host)]; }
  int host_of(int rank) const { return places_[static_cast<size_t>(rank)].host; }
  // The index of a rank among the ranks of its host.
  int local_rank(int rank) const { return places_[static_cast<size_t>(rank)].number; }
  // The rank of `host` that exchanges data with `owner`, a rank of another host, on behalf of all
  // ranks of `host`. Owners are distributed over the ranks of `host`, so that these share its
  // traffic.
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
  // By rank; empty if the topology was not made by discover().
  std::vector<std::string> seen_as_;  // pid and host: "123 on a"
  std::vector<int> numbers_;          // rank in the job; empty: the same
};

}  // namespace zerorun
