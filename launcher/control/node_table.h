#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/control/control_connection.h"
#include "launcher/hosts/cluster.h"
#include "launcher/hosts/remote_start.h"

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

}  // namespace zerorun
