#pragma once

#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/environment.h"
#include "launcher/hosts/cluster.h"
#include "launcher/ranks/output.h"
#include "launcher/ranks/process.h"

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
  int command = -1;  // index of the remote command that started it; -1 = the coordinator
  // Into RemoteCommand::nodes, or "slurm" or "openmpi": ask the scheduler.
  std::string index = "0";
  bool lifeline = false;

  std::vector<std::string> words() const;
  // Throws ConfigError.
  static NodeArguments parse(const std::vector<std::string>& words);
};

// "ssh".
std::string_view name_of(RemoteStart start);

// The processes (ssh, pdsh, srun, mpirun) that started the launchers of a job's hosts, and this
// host's own launcher. Their output is printed, except for the tokens by which launchers are
// recognized.
class LauncherProcesses {
 public:
  LauncherProcesses(OutputQueues& output, const sigset_t& signal_mask);

  // `here`: the command is the launcher of this host itself, which keeps standard input. Throws
  // ConfigError if the command does not exist.
  void start(const RemoteCommand& command, const Environment& environment, bool here = false);
  void add_to(PollSet& waits);
  // Records that a process has ended. Returns the nodes that it started, if it was one of these.
  std::vector<int> ended(pid_t pid, int status);
  bool knows(std::string_view token) const;
  // The last line that the process of a node printed, and how it ended; or empty.
  std::string last_words(int node) const;
  bool any_running() const;
  // Ends the command that started the node, which is lost.
  void drop(int node);
  // Reads and prints all remaining output.
  void finish();

 private:
  struct Process {
    std::string name;
    std::vector<int> nodes;
    pid_t pid = -1;
    std::optional<int> status{};
    FileDescriptor lifeline{};  // write end of its standard input
    std::vector<RankStream> streams{};
  };

  OutputQueues& output_;
  sigset_t signal_mask_;
  std::list<Process> processes_;
  std::vector<std::string> tokens_;
};

}  // namespace zerorun
