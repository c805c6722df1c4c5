#pragma once

#include "launcher/hosts/cluster.h"
#include "launcher/options.h"
#include "launcher/ranks/resources.h"

namespace zerorun {

// A cluster, and a note of one line for the user, or none.
struct ClusterChoice {
  Cluster cluster;
  std::string note{};
};

// Chooses the hosts of the job from the options, the hostfile, and the environment of schedulers.
// Throws ConfigError if the request cannot be met.
ClusterChoice choose_cluster(const LaunchOptions& options, const ThisHost& here);

}  // namespace zerorun
