#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/hosts/cluster.h"
#include "launcher/ranks/resources.h"

namespace zerorun {

// DeepSpeed's --include and --exclude: HOST[:SLOT[,SLOT...]][@HOST...].

// One host of a filter; without slots it means all of them.
struct HostFilter {
  std::string host;
  std::set<int> slots{};
};

// A host may come several times; what is said of it adds up. `option` is for messages. Throws
// ConfigError for text of another form.
std::vector<HostFilter> parse_host_filter(std::string_view option, const std::string& text);

// The hosts and slots of `pool`, in its order, that a filter, --num_nodes and --num_gpus leave.
// `here` is the name of this host, which filters may call localhost. `nodes` 0 = all. Throws
// ConfigError naming the host, slot or number that the pool has not.
std::vector<HostSlots> select_hosts(const std::vector<HostSlots>& pool, const RankRequest& request,
                                    int nodes, const std::string& here);

// True for the names that mean this machine without a look at its addresses.
bool is_this_host(std::string_view name, const std::string& here);

}  // namespace zerorun
