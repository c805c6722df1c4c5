#pragma once

#include <algorithm>
#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/rendezvous/frame_server.h"
#include "launcher/control/control_connection.h"
#include "launcher/control/endpoint_wait.h"
#include "launcher/control/node_table.h"
#include "launcher/hosts/remote_start.h"
#include "launcher/job.h"
#include "launcher/ranks/output.h"

namespace zerorun {

// What the coordinator of launchers that the user starts has to know about them.
struct HandStart {
  std::string program{};  // what every host has to run
  std::string secret{};   // what a launcher must send to join; empty = nothing
  // What the user types on the host of a number; or empty.
  std::function<std::string(int node_rank)> command_on{};
  // Why other hosts may not reach the endpoint, and how long to wait for them; or empty.
  std::string warning{};
  std::chrono::seconds patience{};
  // If the endpoint is no address of this host: how to introduce this launcher to the one there,
  // and its numeric addresses; none if the name is not known yet.
  struct Probe {
    ControlMessage introduction;
    std::vector<std::string> addresses;
  };
  std::optional<Probe> probe{};
};

// A planned job of several hosts: where its launchers meet and what they are told.
struct CoordinatedJob {
  Cluster cluster;
  std::string launcher;                // this zerorun's path
  std::vector<std::string> arguments;  // as the user typed them
  std::vector<RemoteCommand> commands;
  std::vector<std::string> variables{};  // "NAME=value", for the other hosts
  Environment inherited;
  std::string run_id{};
  EndpointWait::Limit join_timeout{std::chrono::seconds{600}};
  std::string endpoint_host{};  // of the first host
  HandStart by_hand{};
};

// Runs a job of several hosts. It starts a launcher on each host, this one included, and accepts
// their connections. It tells them when to begin; ends all of them if one fails, is lost, or the
// user asks for it; restarts the ranks if restarts are left; and prints the output of all. It runs
// no rank itself. One thread with one poll() loop, like the supervisor.
class Coordinator {
 public:
  // `listener`: the socket to which launchers connect. For the other arguments see Supervisor.
  Coordinator(CoordinatedJob job, Listener listener, const FileDescriptor& guardian,
              const sigset_t& rank_signal_mask);

  // Returns the job's exit code: that of the first rank that failed on any host, or 128 + signal if
  // it was asked to stop. Throws ConfigError if a host cannot take part or did not join.
  int run();

 private:
  using Clock = std::chrono::steady_clock;
  // How long a restart waits for lost hosts to join again, if it can do without them; else the time
  // between two attempts to start them.
  static constexpr std::chrono::seconds kRejoin{10};
  static constexpr int kFailureCode = 1;
  static constexpr int kConfigCode = 2;
  enum class Phase : uint8_t { gathering, running, ending, done };

  // Every change of the phase; those that may follow each are in a table.
  void enter(Phase next);
  void start_launchers();
  void start_own_launcher();
  void wait_and_handle();
  void handle_messages();
  void handle_signals();
  void handle_time();

  // Handle launchers that join, and their messages.
  bool by_hand() const { return job_.cluster.start == RemoteStart::by_hand; }
  bool started_by_hand(const ControlMessage& join) const;
  FrameServer::Admission judge_greeting(const std::string& greeting) const;
  void admit(ControlConnection connection, const ControlMessage& join);
  // What a message may come after, and what follows, is in a table. Throws CommError for a message
  // out of turn.
  void handle(Node& node, const ControlMessage& message);
  void take_slots(Node& node, const ControlMessage& ready);
  void watch(Node& node, const ControlMessage& started);
  void end_run_of(Node& node, const ControlMessage& failed);
  void stop_all(Node& node, const ControlMessage& stopping);
  void take_refusal(Node& node, const ControlMessage& refused);
  void take_end(Node& node, const ControlMessage& ended);
  void lose(Node& node, const std::string& why);
  void refuse(const std::string& why, int code);

  // Control one run of the ranks on all hosts.
  void note_absence(Clock::time_point now);
  // Ends the job if another launcher serves its endpoint, or hosts cannot come.
  void check_endpoint(Clock::time_point now);
  static void deny(ControlConnection& connection, const std::string& why);
  size_t present() const;  // nodes that are not lost or gone
  void begin_if_ready();
  void begin();
  void begin_others(Node& first, const ControlMessage& meeting);
  void end_run();
  void conclude_if_ended();
  // The minimum number of hosts.
  size_t needed_hosts() const { return static_cast<size_t>(std::max(1, job_.cluster.min_hosts)); }
  bool restart(const std::string& reason);
  // Starts the launchers of lost hosts again, or waits for the user to do so. False if that is not
  // possible.
  bool recall_lost();
  // The command that starts only the launcher of this node, or null.
  const RemoteCommand* command_for(const Node& node) const;
  bool may_return(const Node& node) const;
  void start_again(Node& node);
  // Handles a node that did not join, or was lost, while hosts gather for a restart.
  void await_return(Node& node);
  int number_of(const Node& node) const { return static_cast<int>(&node - nodes_.data()); }
  void finish(int code, const std::string& report);
  void say(const std::string& line) { output_.errors.append(-1, "[zerorun] " + line + "\n"); }
  void tell_all(const ControlMessage& message);
  int finish_output();

  CoordinatedJob job_;
  const FileDescriptor& guardian_;
  FileDescriptor signals_;
  OutputQueues output_;
  FrameServer server_;
  LauncherProcesses launchers_;
  std::vector<Node> nodes_;
  Meeting meeting_;
  Phase phase_ = Phase::gathering;
  Clock::time_point phase_began_ = Clock::now();
  std::chrono::seconds next_note_ = kFirstNote;
  Clock::time_point next_probe_{};  // to another coordinator
  std::optional<int> stop_signal_;
  struct {
    std::string report;  // why the job cannot run, or how it failed
    int code = 0;
  } outcome_;
};

}  // namespace zerorun
