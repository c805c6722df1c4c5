#include "launcher/control/coordinator.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/printable.h"
#include "core/secret.h"
#include "launcher/hosts/cluster.h"
#include "launcher/ranks/process.h"
#include "launcher/ranks/supervisor.h"

namespace zerorun {

namespace {

using Seconds = std::chrono::duration<double>;

// For the ranks of all hosts to end after a failure: the supervisors' own deadlines, and the way.
constexpr std::chrono::milliseconds kEndPatience{4500};
// For the launchers to go home after the last word.
constexpr std::chrono::milliseconds kExitTime{2000};

}  // namespace

Coordinator::Coordinator(CoordinatedJob job, Listener listener, const FileDescriptor& guardian,
                         const sigset_t& rank_signal_mask)
    : job_(std::move(job)),
      guardian_(guardian),
      signals_(open_signals()),
      server_(std::move(listener), {.clients = 1024, .bytes = size_t{1} << 16}),
      launchers_(output_, rank_signal_mask) {
  for (const HostSlots& host : job_.cluster.hosts) nodes_.push_back(Node{.place = host});
  meeting_.run_id = job_.run_id;
  job_.endpoint_host = job_.cluster.endpoint_host;
  signal(SIGPIPE, SIG_IGN);
}

void Coordinator::enter(Phase next) {
  constexpr bool kMayFollow[4][4] = {
      // gathering, running, ending, done
      {false, true, false, true},    // gathering: all hosts are ready; one cannot take part or come
      {false, false, true, true},    // running: a failure, a loss, a refusal; the ranks' end
      {true, true, false, true},     // ending: a restart, which waits for lost hosts or not; none
      {false, false, false, false},  // done
  };
  const bool follows = kMayFollow[static_cast<size_t>(phase_)][static_cast<size_t>(next)];
  ZR_CHECK(follows, "phase {} after phase {}", static_cast<int>(next), static_cast<int>(phase_));
  phase_ = next;
  phase_began_ = Clock::now();
}

int Coordinator::run() {
  try {
    start_launchers();
    while (phase_ != Phase::done) wait_and_handle();
  } catch (...) {
    end_descendants(kExitTime);
    throw;
  }
  return finish_output();
}

void Coordinator::start_launchers() {
  for (const RemoteCommand& command : job_.commands) launchers_.start(command, job_.inherited);
  if (job_.cluster.node_rank >= 0) start_own_launcher();
}

void Coordinator::start_own_launcher() {
  const NodeArguments arguments = {
      .endpoint_host = "127.0.0.1", .endpoint_port = server_.port(), .index = "0"};
  RemoteCommand here{.words = arguments.words(), .nodes = {job_.cluster.node_rank}};
  here.words.insert(here.words.begin(), job_.launcher);
  launchers_.start(here, job_.inherited, true);
}

void Coordinator::wait_and_handle() {
  PollSet waits;
  waits.add(signals_.get(), POLLIN, [this] { handle_signals(); });
  waits.add(guardian_.get(), POLLIN, [this] {
    for (Node& node : nodes_) node.connection.close();  // which kills the ranks there
    finish(kFailureCode, "the launcher that coordinated the job was killed");
  });
  output_.add_to(waits);
  waits.add(server_.fd(), POLLIN, [] {});
  for (Node& node : nodes_) waits.add(node.connection.fd(), node.connection.events(), [] {});
  launchers_.add_to(waits);
  waits.wait(ControlConnection::kBeat);
  handle_messages();
  const auto judge = [this](FrameConnection&, const std::string& greeting) {
    return judge_greeting(greeting);
  };
  for (auto& [connection, greeting] : server_.service(judge)) {
    admit(ControlConnection(std::move(connection)), ControlMessage::decode(greeting));
  }
  handle_time();
  if (phase_ == Phase::gathering) begin_if_ready();
  if (phase_ == Phase::running || phase_ == Phase::ending) conclude_if_ended();
}

void Coordinator::handle_messages() {
  for (Node& node : nodes_) {
    // Also if a signal ended the wait: a launcher that connects anew needs its place free.
    node.connection.service();
    try {
      while (const auto message = node.connection.next()) handle(node, *message);
    } catch (const CommError& error) {
      lose(node, error.what());
    }
    if (node.alive() && !node.connection.open()) lose(node, "the connection to its launcher ended");
  }
}

void Coordinator::handle_signals() {
  for (const int signal : take_signals(signals_)) {
    const SignalRole role = role_of(signal);
    if (role == SignalRole::child) {
      int status = 0;
      for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        for (const int number : launchers_.ended(pid, status)) {
          Node& node = nodes_[static_cast<size_t>(number)];
          lose(node, launchers_.last_words(number));
        }
      }
    } else if (role != SignalRole::none) {
      if (role == SignalRole::stop && !stop_signal_) {
        stop_signal_ = signal;
        if (phase_ == Phase::done) {
          say("{}: output that nobody has read is lost", signal_name(signal));
        } else {
          say("{}: ending the ranks of {} hosts", signal_name(signal), nodes_.size());
        }
      }
      tell_all(ControlMessage("signal").add("signal", signal));
      if (role == SignalRole::stop && phase_ == Phase::gathering) finish(128 + signal, "");
    }
  }
}

void Coordinator::handle_time() {
  const Clock::time_point now = Clock::now();
  for (Node& node : nodes_) {
    const bool due = node.in(Node::State::absent) && node.call_at && now >= *node.call_at;
    if (due && phase_ == Phase::gathering) start_again(node);
    if (!node.alive()) continue;
    node.connection.beat(now);
    // Before it is ready, and when it begins, a launcher may look at its devices for a while.
    const bool speaks =
        node.in(Node::State::ready) || node.in(Node::State::running) || node.in(Node::State::ended);
    if (speaks && node.connection.silent(now)) {
      lose(node,
           fmt::format(
               "nothing was heard from it for {:.1f} s: the host, its launcher or the link is down",
               Seconds(ControlConnection::kMaxSilence).count()));
    }
  }
  if (phase_ == Phase::gathering) check_endpoint(now);
  if (phase_ == Phase::gathering) note_absence(now);
  if (phase_ != Phase::ending || now - phase_began_ < kEndPatience) return;
  for (Node& node : nodes_) {
    if (node.runs()) lose(node, "its ranks did not end when asked to");
  }
}

size_t Coordinator::present() const {
  return static_cast<size_t>(std::ranges::count_if(nodes_, [](const Node& node) {
    return !node.in(Node::State::lost) && !node.in(Node::State::gone);
  }));
}

void Coordinator::handle(Node& node, const ControlMessage& message) {
  using State = Node::State;
  constexpr auto bit = [](State state) { return 1U << static_cast<unsigned>(state); };
  struct Transition {
    std::string_view message;
    unsigned from;  // bits of the states of a host in which its launcher may send the message
    std::optional<State> to;
    void (Coordinator::*act)(Node& node, const ControlMessage& message);
  };
  constexpr unsigned kAny = ~0U;
  constexpr auto kTransitions = std::to_array<Transition>({
      {"ready", bit(State::joined), State::ready, &Coordinator::take_slots},
      {"meeting", bit(State::starting), {}, &Coordinator::begin_others},
      {"started", bit(State::starting), State::running, &Coordinator::watch},
      {"failed", bit(State::running), {}, &Coordinator::end_run_of},
      {"stopping", kAny, {}, &Coordinator::stop_all},
      {"refused", bit(State::joined) | bit(State::starting) | bit(State::running), State::ended,
       &Coordinator::take_refusal},
      {"ended", bit(State::running), State::ended, &Coordinator::take_end},
  });
  for (const Transition& one : kTransitions) {
    if (!message.is(one.message)) continue;
    if ((one.from & bit(node.state)) == 0) {
      fail<CommError>("its launcher sent '{}' out of turn", one.message);
    }
    node.state = one.to.value_or(node.state);
    (this->*one.act)(node, message);
  }
}

void Coordinator::take_slots(Node& node, const ControlMessage& ready) {
  node.place.slots = decode_slots(ready.text("slots"));
  node.python = printable(ready.text("python"));
}

void Coordinator::watch(Node& node, const ControlMessage& /*started*/) {
  node.connection.listen_anew();
}

void Coordinator::end_run_of(Node& /*node*/, const ControlMessage& /*failed*/) { end_run(); }

void Coordinator::stop_all(Node& node, const ControlMessage& stopping) {
  if (stop_signal_) return;
  constexpr int64_t kMaxSignal = 64;
  stop_signal_ = static_cast<int>(stopping.number("signal", 1, kMaxSignal));
  say("{} on {}: ending the ranks of all hosts", signal_name(*stop_signal_), node.place.host);
  tell_all(ControlMessage("stop").add("signal", *stop_signal_));
  if (phase_ == Phase::gathering) finish(128 + *stop_signal_, "");
}

void Coordinator::take_refusal(Node& node, const ControlMessage& refused) {
  refuse(fmt::format("{}: {}", node.place.host, printable_lines(refused.text("why"))), kConfigCode);
}

void Coordinator::take_end(Node& node, const ControlMessage& ended) {
  node.end = ended;
  constexpr int64_t kLastCause = static_cast<int64_t>(RunEnd::Cause::orphaned);
  const auto cause = static_cast<RunEnd::Cause>(ended.number("cause", 0, kLastCause));
  if (cause == RunEnd::Cause::orphaned) return lose(node, "its launcher was killed");
  if (cause != RunEnd::Cause::failure) return;
  node.failure_order = 1 + static_cast<int>(std::ranges::count_if(
                               nodes_, [](const Node& one) { return one.failure_order > 0; }));
  end_run();
}

void Coordinator::lose(Node& node, const std::string& why) {
  node.connection.close();
  const int number = number_of(node);
  if (node.in(Node::State::lost) || node.in(Node::State::gone) || phase_ == Phase::done) return;
  if (stop_signal_ && node.in(Node::State::ended)) return;  // it may leave; others still save
  launchers_.drop(number);
  node.state = Node::State::lost;
  node.loss = fmt::format("host {} (node {}) was lost: {}", node.place.host, number, why);
  if (phase_ != Phase::gathering) return end_run();
  const bool comes_back = meeting_.restarts > 0 ? may_return(node) : by_hand() && number > 0;
  if (comes_back || present() >= needed_hosts()) return await_return(node);
  refuse(fmt::format("no launcher on host {} (node {}): {}", node.place.host, number,
                     why.empty() ? "it ended" : why),
         kFailureCode);
}

void Coordinator::refuse(const std::string& why, int code) {
  if (outcome_.report.empty()) {
    outcome_.report = why;
    outcome_.code = code;
  }
  if (phase_ == Phase::gathering) return finish(outcome_.code, outcome_.report);
  end_run();
}

void Coordinator::begin_if_ready() {
  const auto answered = [](const Node& node) {
    return node.in(Node::State::ready) || node.in(Node::State::gone);
  };
  if (std::ranges::all_of(nodes_, answered)) begin();
}

void Coordinator::begin() {
  enter(Phase::running);
  Cluster& cluster = job_.cluster;
  cluster.hosts.clear();
  Node* first = nullptr;
  for (Node& node : nodes_) {
    if (node.in(Node::State::gone)) continue;
    if (first == nullptr) first = &node;
    cluster.hosts.push_back(node.place);
    node.end.reset();
    node.failure_order = 0;
  }
  // Without the first host there is no meeting at its address.
  cluster.endpoint_host = first == nodes_.data() ? job_.endpoint_host : first->place.host;
  meeting_.master_addr.clear();
  meeting_.master_port = 0;
  if (const std::string warning = python_warning(nodes_); !warning.empty()) say("{}", warning);
  if (meeting_.secret.empty()) meeting_.secret = make_secret();
  first->state = Node::State::starting;
  first->connection.send(encode_begin(cluster, meeting_, 0));
}

void Coordinator::begin_others(Node& /*first*/, const ControlMessage& place) {
  meeting_.master_addr = place.text("master_addr");
  meeting_.master_port = static_cast<uint16_t>(place.number("master_port", 1, kMaxPort));
  if (phase_ != Phase::running || stop_signal_) return;
  int node_rank = 0;
  for (Node& node : nodes_) {
    if (!node.in(Node::State::ready)) continue;
    node.state = Node::State::starting;
    node.connection.send(encode_begin(job_.cluster, meeting_, ++node_rank));
  }
}

void Coordinator::end_run() {
  if (phase_ != Phase::running) return;
  enter(Phase::ending);
  tell_all(ControlMessage("end"));
}

void Coordinator::conclude_if_ended() {
  const auto busy = [](const Node& node) { return node.runs(); };
  if (std::ranges::any_of(nodes_, busy)) return;
  // Hosts that are not told to begin have nothing to end.
  const bool may_begin = phase_ == Phase::running && !stop_signal_;
  const auto waits = [](const Node& node) { return node.in(Node::State::ready); };
  if (may_begin && std::ranges::any_of(nodes_, waits)) return;
  if (!outcome_.report.empty()) return finish(outcome_.code, outcome_.report);
  const std::optional<Verdict> verdict = judge(nodes_);
  if (!verdict) return finish(stop_signal_ ? 128 + *stop_signal_ : 0, "");
  if (!stop_signal_ && restart(verdict->summary)) return;
  const bool asked = stop_signal_ && verdict->by_loss;
  finish(asked ? 128 + *stop_signal_ : verdict->code, verdict->report);
}

void Coordinator::finish(int code, const std::string& report) {
  if (phase_ == Phase::done) return;
  enter(Phase::done);
  outcome_.code = code;
  outcome_.report = report;
  tell_all(ControlMessage("finish").add("code", code).add("report", report));
  for (size_t i = 0; i < nodes_.size(); ++i) {  // a launcher that has not come cannot be told
    if (nodes_[i].in(Node::State::absent)) launchers_.drop(static_cast<int>(i));
  }
}

void Coordinator::tell_all(const ControlMessage& message) {
  for (Node& node : nodes_) node.connection.send(message);
}

// Launchers end when all that they have to say is passed on, so a slow reader holds them up, until
// somebody asks to stop.
int Coordinator::finish_output() {
  for (Node& node : nodes_) node.connection.flush(kExitTime);
  bool alone = false;
  Clock::time_point deadline = Clock::now() + kExitTime;
  while (launchers_.any_running() && Clock::now() < deadline && !alone) {
    PollSet waits;
    waits.add(signals_.get(), POLLIN, [this] { handle_signals(); });
    waits.add(guardian_.get(), POLLIN, [&alone] { alone = true; });
    output_.add_to(waits);
    launchers_.add_to(waits);
    waits.wait(ControlConnection::kBeat);
    if (output_.pending() && !stop_signal_) deadline = Clock::now() + kExitTime;
  }
  const bool all_ended = end_descendants(kExitTime);
  launchers_.finish();
  if (!all_ended) say("warning: some processes of the job do not react to SIGKILL");
  if (!outcome_.report.empty()) {
    const bool whole = outcome_.report.starts_with("[zerorun]");  // a report of several lines
    output_.errors.append(-1,
                          whole ? outcome_.report : "[zerorun] error: " + outcome_.report + "\n");
  }
  const auto stopped = write_rest(output_, signals_, guardian_, stop_signal_);
  return stopped && outcome_.code == 0 ? 128 + *stopped : outcome_.code;
}

}  // namespace zerorun
