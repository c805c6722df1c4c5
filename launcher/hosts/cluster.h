#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zerorun {

// One host of a job and the slots of it that the job uses.
struct HostSlots {
  std::string host;  // a name or address by which the other hosts reach it
  // Numbers of GPUs, or of CPU ranks; one rank each, in this order. Empty if only the launcher on
  // that host can know them; it then chooses them by the same options and tells the coordinator.
  std::vector<int> slots;
  std::string user{};  // to log in as; empty: the default of ssh or pdsh

  std::string login() const { return user.empty() ? host : user + "@" + host; }
};

// How the launchers on other hosts are started.
enum class RemoteStart : uint8_t {
  none,     // the job has one host
  by_hand,  // the user starts the same command on every host (--nnodes N --node_rank R)
  ssh,
  pdsh,
  slurm,  // srun, once per host of the allocation
  openmpi,
};

// The hosts of a job in the order of their ranks, and how they are reached. Launchers meet at
// `endpoint_host`:`endpoint_port`, which the launcher of the first host serves. Ranks meet there on
// another port, which that launcher chooses.
struct Cluster {
  std::vector<HostSlots> hosts;
  RemoteStart start = RemoteStart::none;
  // The number of this launcher's host. -1 until the launchers meet: launchers without a given
  // number (torchrun's c10d) then get free numbers in the order in which they join.
  int node_rank = 0;
  bool coordinates = true;    // this launcher starts the others
  std::string endpoint_host;  // from --master_addr or --rdzv_endpoint, or the first host
  uint16_t endpoint_port = 0;
  std::vector<std::string> start_arguments;  // extra words for ssh, pdsh, srun or mpirun
  int ssh_port = 0;                          // 0 = ssh's own default
  int max_restarts = 0;
  // The minimum and maximum number of hosts. Both equal hosts.size() unless --nnodes MIN:MAX was
  // given.
  int min_hosts = 1;
  int max_hosts = 1;

  int world_size() const { return ranks_before(hosts.size()); }
  // The rank of the first process on this launcher's host.
  int first_rank() const { return ranks_before(static_cast<size_t>(node_rank)); }
  const HostSlots& this_host() const { return hosts[static_cast<size_t>(node_rank)]; }

 private:
  int ranks_before(size_t host) const {
    size_t ranks = 0;
    for (size_t i = 0; i < host; ++i) ranks += hosts[i].slots.size();
    return static_cast<int>(ranks);
  }
};

}  // namespace zerorun
