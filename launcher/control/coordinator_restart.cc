// A job of several hosts starts anew, with those of its hosts that are there.
#include <fmt/format.h>

#include <algorithm>

#include "launcher/control/coordinator.h"

namespace zerorun {

namespace {

bool is_away(const Node& node) { return node.in(Node::State::lost) || node.in(Node::State::gone); }

}  // namespace

const RemoteCommand* Coordinator::command_for(const Node& node) const {
  const std::vector<int> alone = {number_of(node)};
  const auto command = std::find_if(job_.commands.begin(), job_.commands.end(),
                                    [&](const RemoteCommand& one) { return one.nodes == alone; });
  return command == job_.commands.end() ? nullptr : &*command;
}

bool Coordinator::may_return(const Node& node) const {
  return number_of(node) == job_.cluster.node_rank || job_.cluster.start == RemoteStart::by_hand ||
         command_for(node) != nullptr;
}

void Coordinator::call(Node& node) {
  node.call_at.reset();
  if (number_of(node) == job_.cluster.node_rank) return start_own_launcher();
  if (const RemoteCommand* command = command_for(node)) starters_.start(*command, job_.inherited);
}

bool Coordinator::restart(const std::string& reason) {
  if (meeting_.restarts >= job_.cluster.max_restarts) return false;
  const size_t left = present();
  const auto returning = std::count_if(nodes_.begin(), nodes_.end(), [this](const Node& node) {
    return is_away(node) && may_return(node);
  });
  if (left + static_cast<size_t>(returning) < needed_hosts()) {
    say(
        fmt::format("no restart: of {} hosts {} are left, at least {} are needed (--nnodes MIN:MAX "
                    "allows fewer), and {} cannot start a launcher on a lost one alone",
                    nodes_.size(), left, needed_hosts(), name_of(job_.cluster.start)));
    return false;
  }
  ++meeting_.restarts;
  meeting_.restart_reason = reason;
  say(fmt::format("restart {} of {} on {} hosts: {}", meeting_.restarts, job_.cluster.max_restarts,
                  std::max(left, needed_hosts()), reason));
  for (Node& node : nodes_) {
    node.state = is_away(node) ? Node::State::gone : Node::State::ready;
  }
  if (!call_back()) begin();
  return true;
}

bool Coordinator::call_back() {
  const auto patience = present() >= needed_hosts() ? kRejoin : job_.join_timeout;
  bool called = false;
  for (Node& node : nodes_) {
    if (!node.in(Node::State::gone) || !may_return(node)) continue;
    node.state = Node::State::absent;
    call(node);
    called = true;
  }
  if (!called) return false;
  phase_ = Phase::gathering;
  phase_began_ = Clock::now();
  next_note_ = kRejoin;
  say(fmt::format(
      "waiting {} s at most for lost hosts to join again: {}", patience.count(),
      list_nodes(nodes_, [](const Node& node) { return node.in(Node::State::absent); })));
  return true;
}

void Coordinator::miss(Node& node) {
  const std::string& loss = node.loss;
  if (present() >= needed_hosts()) {
    node.state = Node::State::gone;
    return say(loss + "; going on without it");
  }
  node.state = Node::State::absent;
  node.call_at = Clock::now() + kRejoin;
  if (loss == node.said_loss) return;
  const bool by_hand = job_.cluster.start == RemoteStart::by_hand;
  say(by_hand ? loss + "; it is waited for"
              : fmt::format("{}; it is called again every {} s", loss, kRejoin.count()));
  node.said_loss = loss;
}

}  // namespace zerorun
