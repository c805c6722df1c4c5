#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/hosts/cluster.h"

namespace zerorun {

// The settings that all commands which start launchers on other hosts share.
struct RemoteContext {
  std::string launcher;     // this zerorun's path; where another host has none there, its PATH
  std::string directory;    // to run in
  std::string venv_script;  // sourced first, or empty
  std::string endpoint_host;
  uint16_t endpoint_port = 0;
};

// A command that starts the launchers of some of the hosts and passes on what they print.
struct RemoteCommand {
  std::vector<std::string> words;  // words[0] is looked for in PATH
  std::map<std::string, std::string> variables{};
  std::vector<int> nodes;  // numbers of the hosts in the cluster
  // Its standard input reaches the launcher, which ends when it closes.
  bool lifeline = false;
};

// A launcher prints this first, before its token.
inline constexpr std::string_view kTokenMark = "zerorun-node-token ";

// One ssh for each host, or one pdsh, srun or mpirun for all: of every host of the cluster but
// cluster.node_rank, whose launcher needs no help. Secrets are in none of them: a launcher that was
// started prints a token of its own, by which it is known when it connects.
std::vector<RemoteCommand> remote_commands(const Cluster& cluster, const RemoteContext& context);

// The arguments of the internal command `zerorun --node_launcher`, which is what those run.
struct NodeArguments {
  std::string endpoint_host;
  uint16_t endpoint_port = 0;
  int command = -1;   // which of the remote commands has started it; -1 = the coordinator itself
  std::string index;  // of RemoteCommand::nodes: a number, or "slurm" or "openmpi", which know it
  bool lifeline = false;

  std::vector<std::string> words() const;
  // Throws ConfigError.
  static NodeArguments parse(const std::vector<std::string>& words);
};

// "ssh".
std::string_view name_of(RemoteStart start);

}  // namespace zerorun
