#include "launcher/hosts/starters.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/check.h"
#include "launcher/program.h"
#include "launcher/ranks/report.h"

namespace zerorun {

namespace {

// How many streams one starter has; queues tell their sources apart by number.
constexpr int kSourcesPerStarter = 2;

}  // namespace

Starters::Starters(OutputQueues& output, const sigset_t& signal_mask)
    : output_(output), signal_mask_(signal_mask) {}

void Starters::start(const RemoteCommand& command, const Environment& environment) {
  spawn_starter(command, environment, false);
}

void Starters::start_here(const RemoteCommand& command, const Environment& environment) {
  spawn_starter(command, environment, true);
}

void Starters::spawn_starter(const RemoteCommand& command, const Environment& environment,
                             bool here) {
  const std::string path = find_variable(environment, "PATH").value_or("/usr/bin:/bin");
  std::optional<std::filesystem::path> found = command.words.front();
  if (!here) found = find_in_path(command.words.front(), path);
  if (!found) {
    fail<ConfigError>("cannot start launchers on other hosts: {} is not in PATH ({})",
                      command.words.front(), path);
  }
  Starter& starter = starters_.emplace_back();
  starter.name = command.words.front();
  starter.nodes = command.nodes;
  const int source = static_cast<int>(starters_.size()) * kSourcesPerStarter;
  Pipe output = make_pipe();
  Pipe errors = make_pipe();
  Pipe input = make_pipe();
  const FileDescriptor null_device(open("/dev/null", O_RDONLY | O_CLOEXEC));
  OutputRoute route{.queue = &output_.output, .source = source};
  route.taken = [this](std::string_view line) {
    if (!line.starts_with(kTokenMark)) return false;
    line.remove_prefix(kTokenMark.size());
    tokens_.emplace(line.substr(0, line.find_last_not_of("\r\n") + 1));
    return true;
  };
  starter.streams.emplace_back(std::move(output.read), std::move(route));
  starter.streams.emplace_back(std::move(errors.read),
                               OutputRoute{.queue = &output_.errors, .source = source + 1});
  SpawnRequest request;
  request.command = command.words;
  request.command.front() = found->string();
  Environment variables = environment;
  for (const auto& [name, value] : command.variables) variables[name] = value;
  request.environment = environment_block(variables);
  request.standard_input = here ? -1 : null_device.get();
  if (command.lifeline) request.standard_input = input.read.get();
  request.standard_output = output.write.get();
  request.standard_error = errors.write.get();
  request.signal_mask = signal_mask_;
  Pipe failure = make_pipe();
  starter.pid = spawn(request, failure.write);
  starter.lifeline = std::move(input.write);
  failure.write.close();
  int error = 0;
  if (read(failure.read.get(), &error, sizeof(error)) == sizeof(error)) {
    fail<ConfigError>("cannot execute {}: {}", found->string(), std::strerror(error));
  }
}

void Starters::add_to(PollSet& waits) {
  for (Starter& starter : starters_) {
    for (RankStream& stream : starter.streams) {
      if (stream.wants_data()) waits.add(stream.fd(), POLLIN, [&stream] { stream.read_some(); });
    }
  }
}

std::vector<int> Starters::ended(pid_t pid, int status) {
  for (Starter& starter : starters_) {
    if (starter.pid != pid || starter.status) continue;
    starter.status = status;
    for (RankStream& stream : starter.streams) stream.finish();
    return starter.nodes;
  }
  return {};
}

std::string Starters::last_words(int node) const {
  for (const Starter& starter : starters_) {
    if (std::find(starter.nodes.begin(), starter.nodes.end(), node) == starter.nodes.end()) {
      continue;
    }
    const std::vector<std::string> lines = starter.streams.back().last_lines();
    std::string text = starter.status ? fmt::format("{} ended with {}", starter.name,
                                                    exit_code_of(*starter.status))
                                      : std::string();
    if (!lines.empty()) text += fmt::format("{}{}", text.empty() ? "" : ": ", lines.back());
    return text;
  }
  return {};
}

bool Starters::any_running() const {
  return std::any_of(starters_.begin(), starters_.end(),
                     [](const Starter& starter) { return !starter.status; });
}

void Starters::drop(int node) {
  for (Starter& starter : starters_) {
    // One that reaches other hosts too goes on.
    if (starter.nodes.size() != 1 || starter.nodes.front() != node) continue;
    starter.nodes.clear();  // another one may be started for the node
    if (starter.status) continue;
    starter.lifeline.close();
    kill(starter.pid, SIGKILL);
  }
}

void Starters::finish() {
  for (Starter& starter : starters_) {
    for (RankStream& stream : starter.streams) stream.finish();
  }
}

}  // namespace zerorun
