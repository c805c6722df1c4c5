#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/hosts/cluster.h"
#include "launcher/hosts/this_host.h"
#include "launcher/options.h"

namespace zerorun {

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

}  // namespace zerorun
