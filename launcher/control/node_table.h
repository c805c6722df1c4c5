#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/control/control_connection.h"
#include "launcher/control/control_message.h"
#include "launcher/hosts/cluster.h"
#include "launcher/hosts/remote_start.h"

namespace zerorun {

// One host of a job, as the coordinator knows it.
struct Node {
  // gone: lost in an earlier run, or it never came and the job went on without it.
  enum class State : uint8_t { absent, joined, ready, starting, running, ended, lost, gone };

  HostSlots place;
  State state = State::absent;
  ControlConnection connection{};
  std::optional<ControlMessage> end{};  // how its ranks ended in this run
  std::string loss{};                   // why it is lost
  std::string said_loss{};              // the last one that was told
  // When the command that starts its launcher is to be tried again.
  std::optional<std::chrono::steady_clock::time_point> call_at{};
  // The order in which the nodes failed in this run; 0 = it has not.
  int failure_order = 0;

  bool in(State wanted) const { return state == wanted; }
  bool alive() const { return !in(State::absent) && !in(State::lost) && !in(State::gone); }
  bool runs() const { return state == State::starting || state == State::running; }
};

// The number in the cluster of the launcher that says `join`; nothing when there is no place for
// it.
std::optional<int> place_of(const ControlMessage& join, const std::vector<Node>& nodes,
                            const std::vector<RemoteCommand>& commands, int here);

// Why a launcher cannot take part: it is of another build, or runs another program than `program`,
// the first host's. Empty if it can.
std::string mismatch(const ControlMessage& join, const std::string& program);

// "host-b (node 1), host-c (node 2)": those in a state that `matches`.
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
