#pragma once

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/rendezvous/frame_server.h"
#include "launcher/control/control_connection.h"
#include "launcher/control/endpoint_wait.h"
#include "launcher/hosts/cluster.h"
#include "launcher/hosts/remote_start.h"
#include "launcher/job.h"
#include "launcher/ranks/output.h"

namespace zerorun {

// The coordinator's record of one host of a job.
struct Node {
  // gone: lost in an earlier run, or never joined, and the job continues without it.
  enum class State : uint8_t { absent, joined, ready, starting, running, ended, lost, gone };

  HostSlots place;
  State state = State::absent;
  ControlConnection connection{};
  std::optional<ControlMessage> end{};  // how its ranks ended in this run
  std::string python{};                 // the name of the Python that runs the program there
  std::string loss{};                   // why it was lost
  std::string said_loss{};              // the last loss that was reported
  // When to try the command that starts its launcher again.
  std::optional<std::chrono::steady_clock::time_point> call_at{};
  // The position in the order in which nodes failed in this run; 0: it has not failed.
  int failure_order = 0;

  bool in(State wanted) const { return state == wanted; }
  bool alive() const { return !in(State::absent) && !in(State::lost) && !in(State::gone); }
  bool runs() const { return state == State::starting || state == State::running; }
};

// The number in the cluster of the launcher that sent `join`; nullopt if there is no place for it.
// `here`: the number of the coordinator's own host.
std::optional<int> place_of(const ControlMessage& join, const std::vector<Node>& nodes,
                            const std::vector<RemoteCommand>& commands, int here);

// Why a launcher cannot take part: it is another build, or runs another program than `program`,
// that of the first host. Empty if it can.
std::string mismatch(const ControlMessage& join, const std::string& program);

// Why there is no place for the launcher that sent `join`.
std::string why_no_place(const ControlMessage& join, const std::vector<Node>& nodes);

// What to tell the user about a launcher that takes part: that its clock differs, if it does.
std::string clock_warning(const ControlMessage& join, int64_t now);
// The same about all of them: that they have different Pythons; empty if not.
std::string python_warning(const std::vector<Node>& nodes);

// Lists the nodes for which `matches` is true: "host-b (node 1), host-c (node 2)".
template <typename Matches>
std::string list_nodes(const std::vector<Node>& nodes, Matches matches) {
  std::string text;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!matches(nodes[i])) continue;
    const std::string& host = nodes[i].place.host;
    text += (text.empty() ? "" : ", ") + host + (host.empty() ? "" : " ") + "(node " +
            std::to_string(i) + ")";
  }
  return text.empty() ? "none" : text;
}

// The outcome of the job, judged from how its nodes ended.
struct Verdict {
  int code = 0;
  std::string report{};   // for the end of the output
  std::string summary{};  // of it, in a few words
  bool by_loss = false;   // of a host
};

// The verdict is about a lost host before a rank that a signal killed before the first one that
// failed, since the others follow from it. Nothing when no node failed.
std::optional<Verdict> judge(const std::vector<Node>& nodes);

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
  template <typename... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    output_.say(format, std::forward<Args>(args)...);
  }
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
