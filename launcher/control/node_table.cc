#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "core/build_id.h"
#include "core/parse_number.h"
#include "core/printable.h"
#include "launcher/control/coordinator.h"
#include "zerorun/version.h"

namespace zerorun {

namespace {

std::optional<int> parse_index(const std::string& text, size_t size) {
  return parse_number(text, 0, static_cast<int>(size) - 1);
}

std::optional<int> node_of_command(const ControlMessage& join, const std::vector<Node>& nodes,
                                   const RemoteCommand& command) {
  const std::string index = join.text("index");
  if (index == "slurm") {
    const std::string name = join.text("slurm_name");
    for (const int node : command.nodes) {
      if (nodes[static_cast<size_t>(node)].place.host == name) return node;
    }
    return std::nullopt;
  }
  const auto place =
      parse_index(index == "openmpi" ? join.text("openmpi_rank") : index, command.nodes.size());
  if (!place) return std::nullopt;
  return command.nodes[static_cast<size_t>(*place)];
}

// Larger = nearer to the cause.
int weight(const Node& node) {
  if (node.in(Node::State::lost)) return 3;
  if (node.failure_order == 0 || node.in(Node::State::gone)) return 0;
  return node.end && node.end->text("by_signal") == "1" ? 2 : 1;
}

// Null if no node failed.
const Node* first_cause(const std::vector<Node>& nodes) {
  const auto nearer = [](const Node& a, const Node& b) {
    return weight(a) != weight(b) ? weight(a) < weight(b) : a.failure_order > b.failure_order;
  };
  const auto found = std::ranges::max_element(nodes, nearer);
  return found == nodes.end() || weight(*found) == 0 ? nullptr : &*found;
}

}  // namespace

std::optional<int> place_of(const ControlMessage& join, const std::vector<Node>& nodes,
                            const std::vector<RemoteCommand>& commands, int here) {
  std::optional<int> place;
  const std::optional<int> command = parse_index(join.text("command"), commands.size());
  if (command) {
    place = node_of_command(join, nodes, commands[static_cast<size_t>(*command)]);
  } else if (join.text("program").empty()) {
    place = here;  // this host's own
  } else if (join.text("node_rank") != "-1") {
    place = parse_index(join.text("node_rank"), nodes.size());
    if (place == here) return std::nullopt;  // this host's own launcher has that number
  } else {
    const auto free = std::ranges::find_if(nodes, [here, &nodes](const Node& node) {
      return node.in(Node::State::absent) && &node - nodes.data() != here;
    });
    if (free != nodes.end()) place = static_cast<int>(free - nodes.begin());
  }
  if (!place || *place < 0 || !nodes[static_cast<size_t>(*place)].in(Node::State::absent)) {
    return std::nullopt;
  }
  return place;
}

std::string why_no_place(const ControlMessage& join, const std::vector<Node>& nodes) {
  const std::string host = printable(join.text("host"));
  const auto place = parse_index(join.text("node_rank"), nodes.size());
  const auto absent = [](const Node& node) { return node.in(Node::State::absent); };
  const auto free = std::ranges::find_if(nodes, absent);
  const Node* holder = place ? &nodes[static_cast<size_t>(*place)] : nullptr;
  // The place of the first host's own launcher is taken before that has joined.
  const bool taken = holder != nullptr && (holder->in(Node::State::absent) ||
                                           (holder->alive() && holder->connection.open()));
  if (!taken || join.text("program").empty()) {
    const bool lost = holder != nullptr && !taken;
    return fmt::format("the job has no place for another launcher on {}: {}its {} hosts are {}",
                       host, lost ? fmt::format("it goes on without node {}; ", *place) : "",
                       nodes.size(), list_nodes(nodes, [](const Node&) { return true; }));
  }
  const std::string start =
      fmt::format("two launchers were started with --node_rank {}: on {} and on {}", *place,
                  holder->place.host, host);
  if (free == nodes.end())
    return fmt::format("{}, and all {} hosts have joined", start, nodes.size());
  return fmt::format("{}. Missing: {}. Start the one on {} again with --node_rank {}", start,
                     list_nodes(nodes, absent), host, free - nodes.begin());
}

std::string clock_warning(const ControlMessage& join, int64_t now) {
  constexpr int64_t kTolerance = 60;
  const auto time = parse_number<int64_t>(join.text("time"), 0);  // whoever joins may say anything
  const int64_t ahead = time.value_or(now) - now;
  if (std::abs(ahead) <= kTolerance) return {};
  return fmt::format(
      "warning: the clock of {} is {} s {} this host's: times in logs, metrics and files do not "
      "compare (`timedatectl set-ntp true` there)",
      printable(join.text("host")), std::abs(ahead), ahead > 0 ? "ahead of" : "behind");
}

std::string python_warning(const std::vector<Node>& nodes) {
  const Node* first = nullptr;
  for (const Node& node : nodes) {
    if (node.python.empty()) continue;
    if (first == nullptr) first = &node;
    if (node.python == first->python) continue;
    return fmt::format(
        "warning: the hosts have different Pythons: {} on {}, {} on {}. Objects that ranks "
        "exchange as pickles may differ; ZERORUN_PYTHON or an activated environment chooses one",
        first->python, first->place.host, node.python, node.place.host);
  }
  return {};
}

std::string mismatch(const ControlMessage& join, const std::string& program) {
  const std::string host = printable(join.text("host"));
  if (join.text("build") != build_id().data()) {
    return fmt::format(
        "the hosts have different builds of zerorun: {} has version {}, build {}; the launcher "
        "that coordinates has version {}, build {}. Install the same one on all hosts",
        host, printable(join.text("version")), printable(join.text("build")), ZERORUN_VERSION,
        build_id().data());
  }
  const std::string given = join.text("program");
  if (given.empty() || given == program) return {};
  return fmt::format("the hosts run different commands: {} has '{}', the first host has '{}'", host,
                     printable(given), printable(program));
}

std::optional<Verdict> judge(const std::vector<Node>& nodes) {
  const Node* cause = first_cause(nodes);
  if (cause == nullptr) return std::nullopt;
  Verdict verdict = {.code = 1,
                     .report = cause->loss,
                     .summary = cause->loss,
                     .by_loss = cause->in(Node::State::lost)};
  constexpr int64_t kMaxCode = 255;
  for (const Node& node : nodes) {
    if (!node.end || node.failure_order == 0) continue;
    if (&node == cause || verdict.by_loss) {
      verdict.code = static_cast<int>(node.end->number("code", 0, kMaxCode));
    }
    if (&node != cause) continue;
    verdict.report = node.end->text("report");
    verdict.summary = node.end->text("summary");
  }
  return verdict;
}

}  // namespace zerorun
