#pragma once

#include <algorithm>
#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "launcher/control/control_server.h"
#include "launcher/control/node_table.h"
#include "launcher/hosts/starters.h"
#include "launcher/job.h"
#include "launcher/ranks/output.h"

namespace zerorun {

// A job of several hosts, decided: where its launchers meet and what they are told.
struct CoordinatedJob {
  Cluster cluster;
  std::string launcher;                // this zerorun's path
  std::vector<std::string> arguments;  // as the user typed them
  std::string program;                 // by hand: what every host has to run
  std::vector<RemoteCommand> commands;
  std::vector<std::string> variables{};  // "NAME=value", for the other hosts
  Environment inherited;
  std::string secret{};  // by hand: what a launcher has to say to be let in; empty = nothing
  std::string run_id{};
  std::chrono::seconds join_timeout{600};
  std::string endpoint_host{};  // of the first host
};

// Starts a launcher on each host, this one included, and is the place where they meet: tells them
// when to begin, ends all of them when one fails, is lost, or the user asks for it, starts the
// ranks anew where restarts are left, and passes on what all of them print. It runs no rank itself.
// One thread, one poll() loop, like the supervisor.
class Coordinator {
 public:
  // `listener` is where launchers come to. The rest is as for the supervisor.
  Coordinator(CoordinatedJob job, Listener listener, const FileDescriptor& guardian,
              const sigset_t& rank_signal_mask);

  // Returns the job's exit code: that of the first rank that failed on any host, 128 + signal if
  // it was asked to stop. Throws ConfigError when a host cannot take part, or did not come.
  int run();

 private:
  using Clock = std::chrono::steady_clock;
  // For hosts that were lost to join again when the job starts anew, where it can do without them;
  // else the time between two calls.
  static constexpr std::chrono::seconds kRejoin{10};
  enum class Phase : uint8_t { gathering, running, ending, done };

  void start_launchers();
  void start_own_launcher();
  void wait_and_handle();
  void handle_messages();
  void handle_signals();
  void handle_time();

  // Launchers that come, and what they say.
  void admit(ControlServer::Arrival arrival);
  void handle(Node& node, const ControlMessage& message);
  void lose(Node& node, const std::string& why);
  void refuse(const std::string& why, int code);

  // A run of the ranks on all hosts.
  void note_absence(Clock::time_point now);
  size_t present() const;  // nodes that are not lost or gone
  void begin_if_ready();
  void begin();
  void begin_others(const ControlMessage& place);
  void end_run();
  void conclude_if_ended();
  // The hosts without which the job cannot run.
  size_t needed_hosts() const { return static_cast<size_t>(std::max(1, job_.cluster.min_hosts)); }
  bool restart(const std::string& reason);
  // Expects hosts that were lost to join again; false where none can.
  bool call_back();
  // The command that starts the launcher of this node alone, or null.
  const RemoteCommand* command_for(const Node& node) const;
  bool may_return(const Node& node) const;
  void call(Node& node);
  // A node did not come, or was lost, while hosts gather for a restart.
  void miss(Node& node);
  int number_of(const Node& node) const { return static_cast<int>(&node - nodes_.data()); }
  void finish(int code, const std::string& report);
  void say(const std::string& line) { output_.errors.append(-1, "[zerorun] " + line + "\n"); }
  void tell_all(const ControlMessage& message);
  int wind_up();

  CoordinatedJob job_;
  const FileDescriptor& guardian_;
  FileDescriptor signals_;
  OutputQueues output_;
  ControlServer server_;
  Starters starters_;
  std::vector<Node> nodes_;
  Meeting meeting_;
  Phase phase_ = Phase::gathering;
  Clock::time_point phase_began_ = Clock::now();
  std::chrono::seconds next_note_{10};
  std::optional<int> stop_signal_;
  std::string last_word_;  // why the job cannot run, or how it failed
  int code_ = 0;
};

}  // namespace zerorun
