#pragma once

#include "launcher/hosts/cluster.h"
#include "launcher/hosts/this_host.h"
#include "launcher/options.h"

namespace zerorun {

// A cluster, and one line that the user should know, or none.
struct ClusterChoice {
  Cluster cluster;
  std::string note{};
};

// The hosts of the job, from the options, the hostfile, and the environment of schedulers. Throws
// ConfigError for what cannot be had.
ClusterChoice choose_cluster(const LaunchOptions& options, const ThisHost& here);

}  // namespace zerorun
