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

// The commands (ssh, pdsh, srun, mpirun) that started the launchers of a job's hosts, and this
// host's own one: processes whose output is passed on, but for the tokens by which the launchers
// will be known.
class Starters {
 public:
  Starters(OutputQueues& output, const sigset_t& signal_mask);

  // Throws ConfigError when the command is not there.
  void start(const RemoteCommand& command, const Environment& environment);
  // The launcher of this host, which keeps standard input.
  void start_here(const RemoteCommand& command, const Environment& environment);
  void add_to(PollSet& waits);
  // Takes note of a process that has ended. The nodes that it was to start, if it was a starter.
  std::vector<int> ended(pid_t pid, int status);
  bool knows(const std::string& token) const { return tokens_.contains(token); }
  // The last thing that the starter of a node has said, and how it ended; or empty.
  std::string last_words(int node) const;
  bool any_running() const;
  // Ends the command that reaches the node: nothing is heard from it any more.
  void drop(int node);
  // Takes all that the processes have written.
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
