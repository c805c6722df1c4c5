#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/hosts/cluster.h"

namespace zerorun {

// The settings of all commands that start launchers on other hosts.
struct RemoteContext {
  std::string launcher;     // path of this zerorun; PATH is searched if a host does not have it
  std::string directory;    // to run in
  std::string venv_script;  // sourced first, or empty
  std::string endpoint_host;
  uint16_t endpoint_port = 0;
};

// A command that starts the launchers of some of the hosts and prints their output.
struct RemoteCommand {
  std::vector<std::string> words;  // words[0] is searched in PATH
  std::map<std::string, std::string> variables{};
  std::vector<int> nodes;  // numbers of the hosts in the cluster
  // The launcher reads the command's standard input and ends when it is closed.
  bool lifeline = false;
};

// The first text that a launcher prints, before its token.
inline constexpr std::string_view kTokenMark = "zerorun-node-token ";

// The commands that start the launchers of all hosts except cluster.node_rank: one ssh per host, or
// one pdsh, srun or mpirun. They contain no secrets; a started launcher prints a random token, and
// the coordinator recognizes it by the token when it connects.
std::vector<RemoteCommand> remote_commands(const Cluster& cluster, const RemoteContext& context);

// The arguments of the internal command `zerorun --node_launcher`, which remote commands run.
struct NodeArguments {
  std::string endpoint_host;
  uint16_t endpoint_port = 0;
  int command = -1;   // index of the remote command that started it; -1 = the coordinator
  std::string index;  // into RemoteCommand::nodes, or "slurm" or "openmpi": ask the scheduler
  bool lifeline = false;

  std::vector<std::string> words() const;
  // Throws ConfigError.
  static NodeArguments parse(const std::vector<std::string>& words);
};

// "ssh".
std::string_view name_of(RemoteStart start);

}  // namespace zerorun
