#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
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
  std::string endpoint_host;  // from --master_addr or --rdzv_endpoint, or the first host
  uint16_t endpoint_port = 0;
  std::vector<std::string> start_arguments;  // extra words for ssh, pdsh, srun or mpirun
  int ssh_port = 0;                          // 0 = ssh's own default
  int max_restarts = 0;
  int min_hosts = 1;  // hosts.size() unless --nnodes MIN:MAX was given

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

// Parses the list of hosts that DeepSpeed's launcher and MPI read, one host per line:
//   worker-1 slots=4              # a comment
//   worker-2 slots=4 max_slots=8
//   worker-3:4
//   [fe80::1]:4
//   me@worker-4                   # as many slots as it has; ssh and pdsh log in as "me"
// Slots are numbered from 0; without a number the result has no slots, and the host itself chooses
// them. Throws ConfigError that names `name` and the line for other text, and for a file without
// hosts.
std::vector<HostSlots> parse_hostfile(std::string_view text, const std::string& name);

// nullopt if the file does not exist. Throws ConfigError if it cannot be read or is malformed.
std::optional<std::vector<HostSlots>> read_hostfile(const std::filesystem::path& path);

// True if `name` can be the name or address of a host. False for options of ssh and shell syntax.
bool is_host_name(std::string_view name);

inline constexpr int64_t kMaxPort = 65535;

// Parses "host:29500", "[::1]:29500" or "host"; `port` is the default. Throws ConfigError for other
// text, which names `option`.
struct Endpoint {
  std::string host;
  uint16_t port = 0;
};
Endpoint parse_endpoint(std::string_view option, const std::string& text, uint16_t port);

// {0, 1, ..., count - 1}.
std::vector<int> first_slots(int count);

}  // namespace zerorun
