#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "config/command_line.h"
#include "config/env.h"
#include "core/check.h"
#include "core/joined.h"
#include "core/log.h"
#include "launcher/control/coordinator.h"
#include "launcher/control/node_launcher.h"
#include "launcher/environment.h"
#include "launcher/hosts/host_filter.h"
#include "launcher/hosts/remote_start.h"
#include "launcher/job.h"
#include "launcher/options.h"
#include "launcher/program.h"
#include "launcher/ranks/process.h"
#include "launcher/ranks/supervisor.h"
#include "launcher/words.h"
#include "os/address.h"
#include "os/open_file.h"
#include "os/process_identity.h"

namespace zerorun {

namespace {

// Creates the file /tmp/PID.deepspeed, which contains that number, and removes it with the result
// unless that is a child process's. DeepSpeed's launcher writes it with --save_pid, for scripts
// that end the launcher. Throws IoError.
std::shared_ptr<void> write_pid_file() {
  const pid_t owner = getpid();
  const std::string path = fmt::format("/tmp/{}.deepspeed", owner);
  // A file that an earlier process of this number left behind is replaced; a link that somebody
  // else put there is not followed.
  unlink(path.c_str());
  const FileDescriptor file(
      open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
  const std::string text = std::to_string(owner);
  if (!file || write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    fail<IoError>("--save_pid: cannot write {}: {}", path, std::strerror(errno));
  }
  return {nullptr, [path, owner](void*) {
            if (getpid() == owner) unlink(path.c_str());
          }};
}

// One host, with restarts.
int run_here(Job job, const LaunchOptions& options, const ThisHost& here,
             const FileDescriptor& guardian, const sigset_t& original_mask) {
  const Cluster cluster = job.cluster;
  Meeting meeting = job.meeting;
  OutputQueues output;
  const FileDescriptor signals = open_signals();
  for (;;) {
    const RunEnd end = Supervisor(std::move(job), guardian, original_mask, output).run();
    output.errors.append(-1, end.report);
    std::optional<int> stopped;
    if (end.cause == RunEnd::Cause::request) stopped = end.code - 128;
    stopped = write_rest(output, signals, guardian, stopped);
    const bool again =
        end.cause == RunEnd::Cause::failure && !stopped && meeting.restarts < cluster.max_restarts;
    if (!again) return stopped && end.code == 0 ? 128 + *stopped : end.code;
    ++meeting.restarts;
    meeting.restart_reason = end.summary;
    Logger().info("restart {} of {}: {}", meeting.restarts, cluster.max_restarts, end.summary);
    job = plan_job(options, here, cluster, meeting);
  }
}

// The address under which another host sees this one.
std::string address_towards(const std::string& host) {
  try {
    return own_address_towards(host);
  } catch (const CommError&) {
    return host_name();
  }
}

std::string control_host(const Cluster& cluster) {
  if (cluster.start == RemoteStart::by_hand || cluster.node_rank == 0) return cluster.endpoint_host;
  return address_towards(cluster.hosts.front().host);
}

// The environment of launchers on other hosts, as "NAME=value": torchrun's PET_* are options here.
std::vector<std::string> forwarded_variables(const Environment& environment,
                                             const LaunchOptions& options) {
  Environment forwarded = exported_variables(environment, options.remote.exports);
  for (const auto& [name, value] : environment) {
    if (name.starts_with("PET_")) forwarded[name] = value;
  }
  return environment_block(forwarded);
}

// The options of the launcher as the user typed them, with another number of the host and address.
std::string retyped(const std::vector<std::string>& arguments, const LaunchOptions& options,
                    std::optional<int> node_rank, const std::string& endpoint) {
  const size_t program = arguments.size() - options.program.arguments.size() - 1;
  std::vector<std::string> words = {"zerorun"};
  for (size_t i = 0; i < program; ++i) {
    if (arguments[i] == "--") continue;
    const std::string name = with_underscores(arguments[i].substr(0, arguments[i].find('=')));
    const bool of_endpoint = name == "--master_addr" || name == "--rdzv_endpoint";
    const bool replaced =
        (node_rank && name == "--node_rank") || (!endpoint.empty() && of_endpoint);
    if (!replaced) words.push_back(shell_quote(arguments[i]));
    if (replaced && name.size() == arguments[i].size()) ++i;  // its value
  }
  if (!endpoint.empty()) words.push_back(endpoint);
  if (node_rank) words.push_back(fmt::format("--node_rank {}", *node_rank));
  words.push_back(shell_quote(options.program.name));
  if (!options.program.arguments.empty()) words.emplace_back("...");
  return fmt::format("{}", fmt::join(words, " "));
}

Introduction introduce_by_hand(const LaunchOptions& options, const ThisHost& here,
                               const Cluster& cluster) {
  Introduction introduction;
  introduction.endpoint_host = cluster.endpoint_host;
  introduction.endpoint_port = cluster.endpoint_port;
  introduction.token = find_variable(here.environment, "ZERORUN_JOB_SECRET").value_or("");
  introduction.node_rank = cluster.node_rank;
  introduction.patience = join_timeout(options);
  introduction.by_hand = options;
  return introduction;
}

std::vector<std::string> addresses_of(const std::string& host) {
  std::vector<std::string> addresses;
  try {
    const AddressList found = look_up(host, 0);
    for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
      addresses.push_back(text_of(*one));
    }
  } catch (const CommError&) {  // nobody there can be asked
  }
  return addresses;
}

void add_meeting(CoordinatedJob& job, const std::vector<std::string>& arguments,
                 const LaunchOptions& options, const ThisHost& here) {
  const std::string& endpoint = job.cluster.endpoint_host;
  job.by_hand.secret = find_variable(here.environment, "ZERORUN_JOB_SECRET").value_or("");
  const bool numbered = options.hosts.node_rank.has_value();
  const bool loopback = is_loopback(endpoint);
  if (numbered || !options.hosts.endpoint.empty()) {
    job.by_hand.command_on = [=](int node_rank) {
      return retyped(arguments, options, numbered ? std::optional(node_rank) : std::nullopt, "");
    };
  }
  if (!loopback && is_own_address(endpoint)) return;
  const std::vector<OwnAddress> own = own_addresses();
  const std::string address = own.empty() ? "ADDRESS" : own.front().address;
  const bool is_v6 = address.find(':') != std::string::npos;
  const std::string host = is_v6 ? "[" + address + "]" : address;
  const std::string better =
      options.hosts.endpoint.empty()
          ? "--master_addr " + address
          : "--rdzv_endpoint " + shell_quote(fmt::format("{}:{}", host, job.cluster.endpoint_port));
  job.by_hand.warning = fmt::format(
      "they are to meet at {} (--master_addr, --rdzv_endpoint), which is {}. The addresses of this "
      "host are {}. Type here: {}; and give the other hosts the same address",
      endpoint,
      loopback ? "an address that every host has for itself"
               : "no address of this host, though it is the first (--node_rank 0)",
      list_own_addresses(), retyped(arguments, options, std::nullopt, better));
  job.by_hand.patience = loopback ? kHopelessWait : kSilentWait;
  if (loopback) return;
  job.by_hand.probe = {introduce(introduce_by_hand(options, here, job.cluster)),
                       addresses_of(endpoint)};
}

CoordinatedJob coordinate(const std::vector<std::string>& arguments, const LaunchOptions& options,
                          const ThisHost& here, const Cluster& cluster, uint16_t port) {
  CoordinatedJob job;
  job.cluster = cluster;
  job.launcher = std::filesystem::read_symlink("/proc/self/exe").string();
  job.arguments = arguments;
  job.by_hand.program = program_text(options);
  job.variables = forwarded_variables(here.environment, options);
  job.inherited = here.environment;
  job.run_id = options.hosts.run_id;
  job.join_timeout = join_timeout(options);
  if (cluster.start == RemoteStart::by_hand) add_meeting(job, arguments, options, here);
  job.commands = remote_commands(cluster, {.launcher = job.launcher,
                                           .directory = working_directory().string(),
                                           .venv_script = options.remote.venv_script,
                                           .endpoint_host = control_host(cluster),
                                           .endpoint_port = port});
  return job;
}

// In a job that is started by hand, the other launchers come to this one if it is the first
// host's, or if it has no number and is the first to take the port of its own host.
bool serves_by_hand(const Cluster& cluster) {
  if (cluster.node_rank >= 0) return cluster.node_rank == 0;
  try {
    reserve_port(cluster.endpoint_host, 0);  // is it an address of this host?
    reserve_open_port(cluster.endpoint_port);
    return true;
  } catch (const CommError&) {
    return false;
  }
}

int join_by_hand(const LaunchOptions& options, const ThisHost& here, const Cluster& cluster) {
  const Introduction introduction = introduce_by_hand(options, here, cluster);
  return run_guarded([introduction](const FileDescriptor& guardian, const sigset_t& original_mask) {
    return NodeLauncher(introduction, guardian, original_mask).run();
  });
}

std::string describe_commands(const CoordinatedJob& job) {
  std::string text;
  for (const RemoteCommand& command : job.commands) {
    const auto host_of = [&job](int node) {
      return job.cluster.hosts[static_cast<size_t>(node)].host;
    };
    text += fmt::format("launcher on {}\n", joined(command.nodes, ", ", host_of));
    for (const auto& [name, value] : command.variables) {
      text += fmt::format("  env      {}={}\n", name, shell_quote(value));
    }
    text += fmt::format("  command  {}\n", shell_line(command.words));
  }
  return text;
}

Listener reserve_endpoint(uint16_t port) {
  try {
    return reserve_open_port(port);
  } catch (const CommError& error) {
    fail<ConfigError>(
        "--master_port: {}. If it is the launcher of this job's first host, this one needs another "
        "--node_rank than 0; if not, choose another port, the same on all hosts",
        error.what());
  }
}

int run_coordinator(const std::vector<std::string>& arguments, const LaunchOptions& options,
                    const ThisHost& here, Cluster cluster) {
  // By hand everybody has to know the port; launchers that this one starts are told a free one.
  const bool by_hand = cluster.start == RemoteStart::by_hand;
  if (by_hand && cluster.node_rank < 0) cluster.node_rank = 0;
  auto listener = std::make_shared<Listener>(by_hand ? reserve_endpoint(cluster.endpoint_port)
                                                     : reserve_open_port(0));
  CoordinatedJob job = coordinate(arguments, options, here, cluster, listener->port);
  if (job.by_hand.secret.empty() && by_hand) {
    Logger().warning(
        "launchers join without a secret: ZERORUN_JOB_SECRET, set to the same text on every host, "
        "keeps others out");
  }
  return run_guarded([job = std::move(job), listener](const FileDescriptor& guardian,
                                                      const sigset_t& original_mask) {
    return Coordinator(job, std::move(*listener), guardian, original_mask).run();
  });
}

int dry_run(const std::vector<std::string>& arguments, const LaunchOptions& options,
            const ThisHost& here, const ClusterChoice& choice) {
  const Cluster& cluster = choice.cluster;
  if (!choice.note.empty()) fmt::print("{}\n", choice.note);
  if (cluster.start != RemoteStart::none && cluster.start != RemoteStart::by_hand) {
    fmt::print("{}", describe_commands(
                         coordinate(arguments, options, here, cluster, cluster.endpoint_port)));
  }
  if (cluster.node_rank < 0 || cluster.this_host().slots.empty()) return 0;
  const Job job = plan_job(options, here, cluster, {});
  fmt::print("{}{}{}", job.note, job.note.empty() ? "" : "\n", describe_job(job));
  return 0;
}

bool asks_for_help(const std::vector<std::string>& arguments) {
  return std::ranges::any_of(
      arguments, [](const std::string& word) { return word == "-h" || word == "--help"; });
}

}  // namespace

int launch(const std::vector<std::string>& arguments, const LaunchOptions& given) {
  open_standard_streams();  // so that the sockets below get none of their numbers
  LaunchOptions options = given;
  const bool bundled = is_bundled(options.program, ProgramSearch::here());
  // About the help that a bundled program prints the launcher has nothing to say.
  if (bundled && asks_for_help(options.program.arguments)) options.output.quiet = true;
  const ThisHost here = look_at_this_host(options.request.accelerator, bundled, options.cpus.list);
  ClusterChoice choice = choose_cluster(options, here);
  if (options.output.quiet) choice.note.clear();
  const Cluster& cluster = choice.cluster;
  if (options.dry_run) return dry_run(arguments, options, here, choice);
  const auto pid_file = options.save_pid ? write_pid_file() : nullptr;
  if (cluster.start == RemoteStart::none) {
    Job job = plan_job(options, here, cluster, {});
    if (!choice.note.empty()) Logger().info("{}", choice.note);
    if (!job.note.empty()) Logger().info("{}", job.note);
    return run_guarded([job = std::move(job), &options, &here](const FileDescriptor& guardian,
                                                               const sigset_t& mask) mutable {
      return run_here(std::move(job), options, here, guardian, mask);
    });
  }
  if (!choice.note.empty()) Logger().info("{}", choice.note);
  if (cluster.start == RemoteStart::by_hand && !serves_by_hand(cluster)) {
    return join_by_hand(options, here, cluster);
  }
  return run_coordinator(arguments, options, here, cluster);
}

}  // namespace zerorun
