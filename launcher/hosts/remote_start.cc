#include "launcher/hosts/remote_start.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/check.h"
#include "core/joined.h"
#include "core/parse_number.h"
#include "core/secret.h"
#include "launcher/hosts/cluster.h"
#include "launcher/program.h"
#include "launcher/ranks/report.h"
#include "launcher/words.h"

namespace zerorun {

namespace {

using Words = std::vector<std::string>;

// The command line that a shell on another host runs. `pdsh` puts the host's place among its
// targets for %n, other texts for %h and %u, and % for %%.
std::string node_script(const RemoteContext& context, int command, const std::string& index,
                        bool lifeline) {
  const NodeArguments arguments = {.endpoint_host = context.endpoint_host,
                                   .endpoint_port = context.endpoint_port,
                                   .command = command,
                                   .index = index,
                                   .lifeline = lifeline};
  std::string script;
  if (!context.venv_script.empty()) {
    script += fmt::format(". {} || exit; ", shell_quote(context.venv_script));
  }
  script += fmt::format("cd {} || exit; ", shell_quote(context.directory));
  script +=
      fmt::format("z={}; [ -x \"$z\" ] || z=zerorun; exec \"$z\"", shell_quote(context.launcher));
  return script + " " + shell_line(arguments.words());
}

// The login shell of the other host may be of any family.
std::string in_plain_shell(const std::string& script) {
  return "exec sh -c " + shell_quote(script);
}

void append(Words& words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
}

template <typename Name>
std::string joined_hosts(const Cluster& cluster, const std::vector<int>& nodes, const Name& name) {
  return joined(nodes, ",",
                [&](int node) { return name(cluster.hosts[static_cast<size_t>(node)]); });
}

// A scheduler starts processes as the user who asks it.
std::string name_without_user(const HostSlots& host) {
  if (host.user.empty()) return host.host;
  fail<ConfigError>(
      "the hostfile has '{}', but srun and mpirun start launchers as the user who calls them: "
      "leave '{}@' out, or use --launcher ssh or pdsh",
      host.login(), host.user);
}

// To pdsh what stands before a colon is the way to a host.
std::string name_for_pdsh(const HostSlots& host) {
  const bool colons = host.host.find(':') != std::string::npos;
  return (colons ? "ssh:" : "") + host.login();
}

RemoteCommand ssh_command(const Cluster& cluster, const RemoteContext& context, int node,
                          int command) {
  RemoteCommand ssh{.words = {"ssh"}, .nodes = {node}, .lifeline = true};
  // The user's own options come first: ssh takes the first value that it reads.
  append(ssh.words, cluster.start_arguments);
  if (cluster.ssh_port > 0) append(ssh.words, {"-p", std::to_string(cluster.ssh_port)});
  // Several questions for passwords at once could not be answered.
  append(ssh.words, {"-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"});
  ssh.words.push_back(cluster.hosts[static_cast<size_t>(node)].login());
  ssh.words.push_back(in_plain_shell(node_script(context, command, "0", true)));
  return ssh;
}

RemoteCommand pdsh_command(const Cluster& cluster, const RemoteContext& context,
                           const std::vector<int>& nodes) {
  RemoteCommand pdsh{.words = {"pdsh", "-S", "-N", "-R", "ssh", "-f", "1024"}, .nodes = nodes};
  std::string ssh_arguments = "-o BatchMode=yes -o ConnectTimeout=10";
  if (cluster.ssh_port > 0) ssh_arguments += fmt::format(" -p {}", cluster.ssh_port);
  pdsh.variables["PDSH_SSH_ARGS_APPEND"] = ssh_arguments;
  append(pdsh.words, cluster.start_arguments);
  append(pdsh.words, {"-w", joined_hosts(cluster, nodes, name_for_pdsh)});
  RemoteContext escaped = context;
  for (std::string* text :
       {&escaped.launcher, &escaped.directory, &escaped.venv_script, &escaped.endpoint_host}) {
    for (size_t at = 0; (at = text->find('%', at)) != std::string::npos; at += 2) {
      text->insert(at, 1, '%');
    }
  }
  pdsh.words.push_back(in_plain_shell(node_script(escaped, 0, "%n", false)));
  return pdsh;
}

RemoteCommand srun_command(const Cluster& cluster, const RemoteContext& context,
                           const std::vector<int>& nodes) {
  const std::string count = std::to_string(nodes.size());
  RemoteCommand srun{
      .words = {"srun", "--nodes=" + count, "--ntasks=" + count, "--ntasks-per-node=1",
                "--nodelist=" + joined_hosts(cluster, nodes, name_without_user), "--overlap",
                "--cpu-bind=none", "--input=none", "--unbuffered", "--kill-on-bad-exit=0"},
      .nodes = nodes};
  append(srun.words, cluster.start_arguments);
  append(srun.words, {"sh", "-c", node_script(context, 0, "slurm", false)});
  return srun;
}

RemoteCommand mpirun_command(const Cluster& cluster, const RemoteContext& context,
                             const std::vector<int>& nodes) {
  RemoteCommand mpirun{.words = {"mpirun", "-np", std::to_string(nodes.size()), "--host",
                                 joined_hosts(cluster, nodes, name_without_user), "--map-by",
                                 "ppr:1:node", "--bind-to", "none"},
                       .nodes = nodes};
  append(mpirun.words, cluster.start_arguments);
  append(mpirun.words, {"sh", "-c", node_script(context, 0, "openmpi", false)});
  return mpirun;
}

int64_t parse_whole(const std::string& text, int64_t low, int64_t high) {
  const std::optional<int64_t> value = parse_number(text, low, high);
  if (!value) {
    fail<ConfigError>(
        "--node_launcher is what zerorun starts on other hosts, not for users; got "
        "'{}', expected a number from {} to {}",
        text, low, high);
  }
  return *value;
}

// How many streams a process has; queues tell their sources apart by number.
constexpr int kSourcesPerProcess = 2;

}  // namespace

std::vector<RemoteCommand> remote_commands(const Cluster& cluster, const RemoteContext& context) {
  std::vector<int> nodes;
  for (int node = 0; node < static_cast<int>(cluster.hosts.size()); ++node) {
    if (node != cluster.node_rank) nodes.push_back(node);
  }
  if (nodes.empty()) return {};
  switch (cluster.start) {
    case RemoteStart::none:
    case RemoteStart::by_hand:
      return {};
    case RemoteStart::pdsh:
      return {pdsh_command(cluster, context, nodes)};
    case RemoteStart::slurm:
      return {srun_command(cluster, context, nodes)};
    case RemoteStart::openmpi:
      return {mpirun_command(cluster, context, nodes)};
    case RemoteStart::ssh:
      break;
  }
  std::vector<RemoteCommand> commands;
  commands.reserve(nodes.size());
  for (const int node : nodes) {
    commands.push_back(ssh_command(cluster, context, node, static_cast<int>(commands.size())));
  }
  return commands;
}

std::vector<std::string> NodeArguments::words() const {
  return {"--node_launcher",       endpoint_host, std::to_string(endpoint_port),
          std::to_string(command), index,         lifeline ? "lifeline" : "free"};
}

NodeArguments NodeArguments::parse(const std::vector<std::string>& words) {
  constexpr size_t kWords = 6;
  if (words.size() != kWords) {
    fail<ConfigError>(
        "--node_launcher is what zerorun starts on other hosts, not for users; got "
        "{} words, expected {}",
        words.size(), kWords);
  }
  constexpr int64_t kMaxCommands = 1 << 20;
  return {.endpoint_host = words[1],
          .endpoint_port = static_cast<uint16_t>(parse_whole(words[2], 1, kMaxPort)),
          .command = static_cast<int>(parse_whole(words[3], -1, kMaxCommands)),
          .index = words[4],
          .lifeline = words[5] == "lifeline"};
}

std::string_view name_of(RemoteStart start) {
  switch (start) {
    case RemoteStart::none:
    case RemoteStart::by_hand:
      break;
    case RemoteStart::ssh:
      return "ssh";
    case RemoteStart::pdsh:
      return "pdsh";
    case RemoteStart::slurm:
      return "srun";
    case RemoteStart::openmpi:
      return "mpirun";
  }
  return "zerorun";
}

LauncherProcesses::LauncherProcesses(OutputQueues& output, const sigset_t& signal_mask)
    : output_(output), signal_mask_(signal_mask) {}

void LauncherProcesses::start(const RemoteCommand& command, const Environment& environment,
                              bool here) {
  const std::string path = find_variable(environment, "PATH").value_or("/usr/bin:/bin");
  std::optional<std::filesystem::path> found = command.words.front();
  if (!here) found = find_in_path(command.words.front(), path);
  if (!found) {
    fail<ConfigError>("cannot start launchers on other hosts: {} is not in PATH ({})",
                      command.words.front(), path);
  }
  Process& process = processes_.emplace_back();
  process.name = command.words.front();
  process.nodes = command.nodes;
  const int source = static_cast<int>(processes_.size()) * kSourcesPerProcess;
  Pipe output = make_pipe();
  Pipe errors = make_pipe();
  Pipe input = make_pipe();
  const FileDescriptor null_device(open("/dev/null", O_RDONLY | O_CLOEXEC));
  OutputRoute route{.queue = &output_.output, .source = source};
  route.taken = [this](std::string_view line) {
    if (!line.starts_with(kTokenMark)) return false;
    line.remove_prefix(kTokenMark.size());
    tokens_.emplace_back(line.substr(0, line.find_last_not_of("\r\n") + 1));
    return true;
  };
  process.streams.emplace_back(std::move(output.read), std::move(route));
  process.streams.emplace_back(std::move(errors.read),
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
  process.pid = spawn(request);
  process.lifeline = std::move(input.write);
}

void LauncherProcesses::add_to(PollSet& waits) {
  for (Process& process : processes_) {
    for (RankStream& stream : process.streams) {
      if (stream.wants_data()) waits.add(stream.fd(), POLLIN, [&stream] { stream.read_some(); });
    }
  }
}

bool LauncherProcesses::knows(std::string_view token) const {
  return std::ranges::any_of(tokens_,
                             [token](const std::string& one) { return same_secret(one, token); });
}

std::vector<int> LauncherProcesses::ended(pid_t pid, int status) {
  for (Process& process : processes_) {
    if (process.pid != pid || process.status) continue;
    process.status = status;
    for (RankStream& stream : process.streams) stream.finish();
    return process.nodes;
  }
  return {};
}

std::string LauncherProcesses::last_words(int node) const {
  for (const Process& process : processes_) {
    if (std::ranges::find(process.nodes, node) == process.nodes.end()) continue;
    const std::vector<std::string> lines = process.streams.back().last_lines();
    std::string text = process.status ? fmt::format("{} ended with {}", process.name,
                                                    exit_code_of(*process.status))
                                      : std::string();
    if (!lines.empty()) text += fmt::format("{}{}", text.empty() ? "" : ": ", lines.back());
    return text;
  }
  return {};
}

bool LauncherProcesses::any_running() const {
  return std::ranges::any_of(processes_, [](const Process& process) { return !process.status; });
}

void LauncherProcesses::drop(int node) {
  for (Process& process : processes_) {
    // One that reaches other hosts too goes on.
    if (process.nodes.size() != 1 || process.nodes.front() != node) continue;
    process.nodes.clear();  // another one may be started for the node
    if (process.status) continue;
    process.lifeline.close();
    kill(process.pid, SIGKILL);
  }
}

void LauncherProcesses::finish() {
  for (Process& process : processes_) {
    for (RankStream& stream : process.streams) stream.finish();
  }
}

}  // namespace zerorun
