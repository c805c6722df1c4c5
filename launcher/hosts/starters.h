#pragma once

#include <sys/types.h>

#include <csignal>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/environment.h"
#include "launcher/hosts/remote_start.h"
#include "launcher/ranks/output.h"
#include "launcher/ranks/poll_set.h"
#include "launcher/ranks/process.h"

namespace zerorun {

// The processes (ssh, pdsh, srun, mpirun) that started the launchers of a job's hosts, and this
// host's own launcher. Their output is printed, except for the tokens by which launchers are
// recognized.
class Starters {
 public:
  Starters(OutputQueues& output, const sigset_t& signal_mask);

  // Throws ConfigError if the command does not exist.
  void start(const RemoteCommand& command, const Environment& environment);
  // Starts the launcher of this host, which keeps standard input.
  void start_here(const RemoteCommand& command, const Environment& environment);
  void add_to(PollSet& waits);
  // Records that a process has ended. Returns the nodes that it started, if it was a starter.
  std::vector<int> ended(pid_t pid, int status);
  bool knows(const std::string& token) const { return tokens_.contains(token); }
  // The last line that the starter of a node printed, and how it ended; or empty.
  std::string last_words(int node) const;
  bool any_running() const;
  // Ends the command that started the node, which is lost.
  void drop(int node);
  // Reads and prints all remaining output.
  void finish();

 private:
  struct Starter {
    std::string name;
    std::vector<int> nodes;
    pid_t pid = -1;
    std::optional<int> status{};
    FileDescriptor lifeline{};  // write end of its standard input
    std::vector<RankStream> streams{};
  };

  void spawn_starter(const RemoteCommand& command, const Environment& environment, bool here);

  OutputQueues& output_;
  sigset_t signal_mask_;
  std::list<Starter> starters_;
  std::set<std::string> tokens_;
};

}  // namespace zerorun
