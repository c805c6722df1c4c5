#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/hosts/cluster.h"
#include "launcher/options.h"
#include "launcher/ranks/resources.h"

namespace zerorun {

// DeepSpeed's --include and --exclude: HOST[:SLOT[,SLOT...]][@HOST...].

// One host of a filter. Without slots it selects all of them.
struct HostFilter {
  std::string host;
  std::set<int> slots{};
};

// Parses a filter. Slots of a host that occurs several times are combined. `option` is named in
// errors. Throws ConfigError for malformed text.
std::vector<HostFilter> parse_host_filter(std::string_view option, const std::string& text);

// The hosts and slots of `pool`, in its order, that the filters, --num_nodes and --num_gpus select.
// `here`: the name of this host, which filters may call localhost. `nodes`: 0 = all. Throws
// ConfigError that names a host, slot or number that `pool` does not have.
std::vector<HostSlots> select_hosts(const std::vector<HostSlots>& pool, const RankRequest& request,
                                    int nodes, const std::string& here);

// True for names that are known to mean this machine without resolving addresses.
bool is_this_host(std::string_view name, const std::string& here);

// The hosts of a hostfile or an allocation, and which of them is this one.
struct Pool {
  std::vector<HostSlots> hosts;
  RemoteStart start = RemoteStart::ssh;
  std::optional<std::string> own{};
};

// nullopt without a hostfile; `note` says so if the one that is given does not exist.
std::optional<Pool> pool_of_hostfile(const LaunchOptions& options, const ThisHost& here,
                                     std::string& note);

// The hosts of an allocation of Slurm, for a command in its batch script or shell.
std::optional<Pool> pool_of_allocation(const ThisHost& here);

// A variable of the environment; empty if it is not set.
std::string variable(const ThisHost& here, const std::string& name);

// A cluster, and a note of one line for the user, or none.
struct ClusterChoice {
  Cluster cluster;
  std::string note{};
};

// Chooses the hosts of the job from the options, the hostfile, and the environment of schedulers.
// Throws ConfigError if the request cannot be met.
ClusterChoice choose_cluster(const LaunchOptions& options, const ThisHost& here);

}  // namespace zerorun
