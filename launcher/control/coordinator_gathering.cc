// The hosts of a job gather: at first, and when it starts anew with those that are there.
#include <algorithm>
#include <ctime>
#include <utility>

#include "core/check.h"
#include "core/printable.h"
#include "core/secret.h"
#include "launcher/control/coordinator.h"

namespace zerorun {

namespace {

using Seconds = std::chrono::duration<double>;

// With fewer hosts than the most that the job may have, others may still come.
constexpr std::chrono::seconds kOptionalWait{30};
constexpr std::chrono::seconds kProbeInterval{2};

bool is_away(const Node& node) { return node.in(Node::State::lost) || node.in(Node::State::gone); }

}  // namespace

void Coordinator::note_absence(Clock::time_point now) {
  const auto waited = now - phase_began_;
  const auto missing = [](const Node& node) { return node.in(Node::State::absent); };
  const auto absent = static_cast<size_t>(std::ranges::count_if(nodes_, missing));
  if (absent == 0) return;
  const std::string who =
      fmt::format("there: {}; missing: {}; the place to join is {} port {}",
                  list_nodes(nodes_, [](const Node& node) { return node.alive(); }),
                  list_nodes(nodes_, missing), job_.cluster.endpoint_host, server_.port());
  const auto patience =
      std::min(meeting_.restarts > 0 ? kRejoin : kOptionalWait, job_.join_timeout.time);
  if (present() - absent >= needed_hosts() && waited > patience) {
    say("starting without hosts that have not come for {:.0f} s; {}", Seconds(waited).count(), who);
    for (Node& node : nodes_) {
      if (missing(node)) node.state = Node::State::gone;
    }
  } else if (waited > job_.join_timeout.time) {
    const std::string reason =
        meeting_.restarts > 0 ? "; the job was to start anew: " + meeting_.restart_reason
        : job_.by_hand.warning.empty()
            ? ""
            : ". Perhaps the hosts do not find each other: " + job_.by_hand.warning;
    refuse(fmt::format("not all hosts have joined within {} s; {}{}",
                       job_.join_timeout.time.count(), who, reason),
           kFailureCode);
  } else if (waited > next_note_) {
    const auto first = std::ranges::find_if(nodes_, missing);
    say("waiting for the launchers of all hosts since {:.0f} s; {}{}", Seconds(waited).count(), who,
        job_.by_hand.command_on
            ? ". On the missing host type: " + job_.by_hand.command_on(number_of(*first))
            : "");
    next_note_ *= 2;
  }
}

void Coordinator::check_endpoint(Clock::time_point now) {
  if (job_.by_hand.warning.empty() || meeting_.restarts > 0) return;
  const auto joined = std::ranges::count_if(nodes_, [](const Node& node) { return node.alive(); });
  if (joined > 1) return job_.by_hand.warning.clear();  // another host has found the way
  if (job_.by_hand.probe) {
    if (now < next_probe_) return;
    next_probe_ = now + kProbeInterval;
    const OtherCoordinator other =
        ask_other_coordinator(job_.by_hand.probe->addresses, job_.cluster.endpoint_port,
                              job_.by_hand.probe->introduction);
    if (!other.denial.empty()) return refuse(other.denial, kConfigCode);
    if (other.reached) return;  // the way there leads back here, as through a Kubernetes service
  }
  if (static_cast<size_t>(joined) >= needed_hosts()) return;  // it begins without others
  const auto patience = job_.by_hand.patience;
  if (now - phase_began_ <= patience) return;
  // Other hosts may reach an address at which this host does not reach itself.
  if (job_.by_hand.probe) {
    job_.by_hand.patience = job_.join_timeout.time;  // said once
    say("no other host has joined for {} s: {}", patience.count(), job_.by_hand.warning);
  } else if (!job_.join_timeout.given) {
    refuse(fmt::format(
               "no other host has joined for {} s: {}. --rdzv_conf timeout=SECONDS waits longer",
               patience.count(), job_.by_hand.warning),
           kConfigCode);
  }
}

void Coordinator::deny(ControlConnection& connection, const std::string& why) {
  connection.send(ControlMessage("denied").add("why", why));
  connection.flush(ControlConnection::kBeat);
}

// Only in a job that is started by hand: any program may claim it.
bool Coordinator::started_by_hand(const ControlMessage& join) const {
  return by_hand() && !join.text("program").empty();
}

FrameServer::Admission Coordinator::judge_greeting(const std::string& greeting) const {
  using Admission = FrameServer::Admission;
  try {
    const ControlMessage join = ControlMessage::decode(greeting);
    if (!join.is("join")) return Admission::deny;
    // Of one that the user started, admit() tells what is wrong with it. Of others the token may
    // still be on its way through the output of what has started them.
    const bool known = started_by_hand(join) || launchers_.knows(join.text("token"));
    return known ? Admission::admit : Admission::wait;
  } catch (const CommError&) {  // not a launcher
    return Admission::deny;
  }
}

void Coordinator::admit(ControlConnection connection, const ControlMessage& join) {
  const bool told_by_hand = started_by_hand(join);
  if (told_by_hand && !same_secret(join.text("token"), job_.by_hand.secret)) {
    return deny(connection, fmt::format("ZERORUN_JOB_SECRET is another here than at {}, or missing "
                                        "on one of the hosts: set it to the same text on all",
                                        job_.cluster.endpoint_host));
  }
  if (const std::string why = mismatch(join, job_.by_hand.program); !why.empty()) {
    deny(connection, why);
    if (phase_ == Phase::gathering && meeting_.restarts == 0) refuse(why, kConfigCode);
    return;
  }
  const auto place = place_of(join, nodes_, job_.commands, job_.cluster.node_rank);
  if (!place || phase_ != Phase::gathering) {
    const std::string why = why_no_place(join, nodes_);
    deny(connection, why);
    // The user can start one more, with another number, while the others wait.
    if (told_by_hand) return say("warning: {}", why);
    if (phase_ == Phase::gathering && meeting_.restarts == 0) refuse(why, kConfigCode);
    return;
  }
  if (const std::string warning = clock_warning(join, std::time(nullptr)); !warning.empty()) {
    say("{}", warning);
  }
  Node& node = nodes_[static_cast<size_t>(*place)];
  node.connection = std::move(connection);
  node.state = Node::State::joined;
  if (by_hand()) node.place.host = printable(join.text("host"));
  node.connection.send(ControlMessage("job")
                           .add_all("argument", job_.arguments)
                           .add_all("variable", job_.variables)
                           .add("slots", encode_slots(node.place.slots)));
}

const RemoteCommand* Coordinator::command_for(const Node& node) const {
  const std::vector<int> alone = {number_of(node)};
  const auto command = std::ranges::find(job_.commands, alone, &RemoteCommand::nodes);
  return command == job_.commands.end() ? nullptr : &*command;
}

bool Coordinator::may_return(const Node& node) const {
  return number_of(node) == job_.cluster.node_rank || by_hand() || command_for(node) != nullptr;
}

void Coordinator::start_again(Node& node) {
  node.call_at.reset();
  if (number_of(node) == job_.cluster.node_rank) return start_own_launcher();
  if (const RemoteCommand* command = command_for(node)) launchers_.start(*command, job_.inherited);
}

bool Coordinator::restart(const std::string& reason) {
  if (meeting_.restarts >= job_.cluster.max_restarts) return false;
  const size_t left = present();
  const auto returning = std::ranges::count_if(
      nodes_, [this](const Node& node) { return is_away(node) && may_return(node); });
  if (left + static_cast<size_t>(returning) < needed_hosts()) {
    say("no restart: of {} hosts {} are left, at least {} are needed (--nnodes MIN:MAX allows "
        "fewer), and {} cannot start a launcher on a lost one alone",
        nodes_.size(), left, needed_hosts(), name_of(job_.cluster.start));
    return false;
  }
  ++meeting_.restarts;
  meeting_.restart_reason = reason;
  say("restart {} of {} on {} hosts: {}", meeting_.restarts, job_.cluster.max_restarts,
      std::max(left, needed_hosts()), reason);
  for (Node& node : nodes_) node.state = is_away(node) ? Node::State::gone : Node::State::ready;
  if (!recall_lost()) begin();
  return true;
}

bool Coordinator::recall_lost() {
  const auto patience = present() >= needed_hosts() ? kRejoin : job_.join_timeout.time;
  bool called = false;
  for (Node& node : nodes_) {
    if (!node.in(Node::State::gone) || !may_return(node)) continue;
    node.state = Node::State::absent;
    start_again(node);
    called = true;
  }
  if (!called) return false;
  enter(Phase::gathering);
  next_note_ = kRejoin;
  say("waiting {} s at most for lost hosts to join again: {}", patience.count(),
      list_nodes(nodes_, [](const Node& node) { return node.in(Node::State::absent); }));
  return true;
}

void Coordinator::await_return(Node& node) {
  const std::string& loss = node.loss;
  const bool first_start = by_hand() && meeting_.restarts == 0;  // which kOptionalWait ends
  if (present() >= needed_hosts() && !first_start) {
    node.state = Node::State::gone;
    return say("{}{}", loss, "; going on without it");
  }
  node.state = Node::State::absent;
  node.call_at = Clock::now() + kRejoin;
  if (loss == node.said_loss) return;
  node.said_loss = loss;
  if (by_hand()) return say("{}{}", loss, "; it is waited for");
  say("{}; it is called again every {} s", loss, kRejoin.count());
}

}  // namespace zerorun
