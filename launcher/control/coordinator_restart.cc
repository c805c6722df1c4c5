// A job of several hosts starts anew, with those of its hosts that are there.
#include <fmt/format.h>

#include <algorithm>

#include "launcher/control/coordinator.h"

namespace zerorun {

bool Coordinator::restart(const std::string& reason) {
  if (meeting_.restarts >= job_.cluster.max_restarts) return false;
  const size_t left = present();
  if (left < needed_hosts()) {
    say(
        fmt::format("no restart: {} hosts are left, at least {} are needed (--nnodes MIN:MAX "
                    "allows fewer)",
                    left, needed_hosts()));
    return false;
  }
  ++meeting_.restarts;
  meeting_.restart_reason = reason;
  say(fmt::format("restart {} of {} on {} hosts: {}", meeting_.restarts, job_.cluster.max_restarts,
                  left, reason));
  for (Node& node : nodes_) {
    const bool gone = node.in(Node::State::lost) || node.in(Node::State::gone);
    node.state = gone ? Node::State::gone : Node::State::ready;
  }
  if (!call_back()) begin();
  return true;
}

bool Coordinator::call_back() {
  bool called = false;
  for (Node& node : nodes_) {
    if (!node.in(Node::State::gone)) continue;
    const std::vector<int> alone = {static_cast<int>(&node - nodes_.data())};
    const auto command = std::find_if(job_.commands.begin(), job_.commands.end(),
                                      [&](const RemoteCommand& one) { return one.nodes == alone; });
    const bool by_hand = job_.cluster.start == RemoteStart::by_hand;
    if (command == job_.commands.end() && !by_hand) continue;
    node.state = Node::State::absent;
    if (!by_hand) starters_.start(*command, job_.inherited);
    called = true;
  }
  if (!called) return false;
  phase_ = Phase::gathering;
  phase_began_ = Clock::now();
  next_note_ = kRejoin;
  say(fmt::format(
      "waiting {} s at most for lost hosts to join again: {}", kRejoin.count(),
      list_nodes(nodes_, [](const Node& node) { return node.in(Node::State::absent); })));
  return true;
}

}  // namespace zerorun
