#include "launcher/job.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "config/env.h"
#include "core/check.h"
#include "launcher/ranks/cpus.h"
#include "launcher/ranks/process.h"
#include "launcher/ranks/report.h"
#include "launcher/words.h"
#include "os/address.h"
#include "os/host_limits.h"
#include "zerorun/error.h"

namespace zerorun {

namespace {

std::string join_paths(std::initializer_list<std::string> paths) {
  std::string joined;
  for (const std::string& path : paths) {
    if (path.empty()) continue;
    joined += (joined.empty() ? "" : ":") + path;
  }
  return joined;
}

// Settings of NVIDIA's libraries that training wants, for a user who has not set them.
constexpr auto kGpuSettings = std::to_array<std::pair<const char*, const char*>>({
    // As comm/device_communicator.cc does, for programs that use PyTorch's communicators before
    // ours.
    {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"},
    // A hardware queue for each stream: with the default of 8, copies wait behind other streams'
    // kernels.
    {"CUDA_DEVICE_MAX_CONNECTIONS", "32"},
});

// A container's share of CPU time bounds the threads even if it may use every CPU.
int limit_threads(int threads, int ranks, const std::optional<double>& quota) {
  if (!quota) return threads;
  return std::clamp(static_cast<int>(std::ceil(*quota / ranks)), 1, threads);
}

// The node of each rank's GPU, by local rank.
std::vector<std::optional<int>> nodes_of(const Selection& selection) {
  std::vector<std::optional<int>> nodes(selection.slots.size());
  if (selection.gpus.empty()) return nodes;
  const std::vector<std::optional<int>> of_gpus = gpu_nodes(selection.gpus);
  for (size_t rank = 0; rank < nodes.size(); ++rank) nodes[rank] = of_gpus[rank % of_gpus.size()];
  return nodes;
}

// The first host decides where the ranks meet, and holds the port; the others are told.
Meeting decide_meeting(const LaunchOptions& options, const Cluster& cluster, const Meeting& told,
                       std::shared_ptr<FileDescriptor>& socket) {
  Meeting meeting = told;
  if (meeting.run_id.empty()) {
    meeting.run_id = options.hosts.run_id.empty() ? "none" : options.hosts.run_id;
  }
  if (meeting.secret.empty()) meeting.secret = make_secret();
  if (cluster.node_rank != 0) return meeting;
  Listener listener;
  if (cluster.hosts.size() > 1) {
    meeting.master_addr = cluster.endpoint_host;
    // By hand the launchers meet at the given port, and the ranks at another one.
    const bool by_hand = cluster.start == RemoteStart::by_hand;
    listener = reserve_open_port(by_hand ? 0 : options.hosts.master_port);
  } else {
    const std::string& given = options.hosts.master_addr;
    meeting.master_addr = given.empty() ? "127.0.0.1" : given;
    listener = reserve_master_port(meeting.master_addr, options.hosts.master_port);
  }
  meeting.master_port = listener.port;
  socket = std::make_shared<FileDescriptor>(std::move(listener.socket));
  return meeting;
}

void check_interface(const std::string& interface) {
  try {
    own_address_of(interface, "");
  } catch (const CommError& error) {
    fail<ConfigError>("--interface: {}; `ip addr` lists both", error.what());
  }
}

// The variables that tell ranks the options of the launcher.
Environment variables_of_options(const LaunchOptions& options) {
  Environment variables;
  if (options.request.comm_timeout_s) {
    variables["ZERORUN_COMM_TIMEOUT"] = fmt::format("{}", *options.request.comm_timeout_s);
  }
  if (!options.remote.interface.empty()) {
    check_interface(options.remote.interface);
    variables["GLOO_SOCKET_IFNAME"] = options.remote.interface;
    variables["NCCL_SOCKET_IFNAME"] = options.remote.interface;
  }
  return variables;
}

// The folder of the ranks' output; --tee and --redirects without one get a new folder.
std::string log_folder(const OutputRequest& output) {
  if (!output.log_dir.empty() || (output.tee.empty() && output.redirects.empty())) {
    return output.log_dir;
  }
  return choose_temporary_path() + "_logs";
}

std::string notes_for(const LaunchOptions& options, const Selection& selection, const Job& job) {
  if (options.output.quiet) return {};
  std::vector<std::string> notes = options.notes;
  if (!selection.note.empty()) notes.push_back(selection.note);
  if (job.log_dir != options.output.log_dir) notes.push_back("output is in " + job.log_dir);
  return fmt::format("{}", fmt::join(notes, "; "));
}

JobSettings settings_of(const Job& job, const LaunchOptions& options, const ThisHost& here,
                        const Selection& selection) {
  JobSettings settings;
  settings.cluster = job.cluster;
  settings.meeting = job.meeting;
  settings.role = options.request.role;
  if (job.rendezvous) settings.store_fd = job.rendezvous->get();
  settings.gpus = selection.gpus;
  settings.names_gpus = !selection.none_found || here.resources.own_program;
  settings.working_directory = working_directory().string();
  settings.more = variables_of_options(options);
  if (!job.log_dir.empty()) {
    settings.more["ZERORUN_STALL_FILE"] =
        (std::filesystem::absolute(job.log_dir) / "stall.json").string();
  }
  return settings;
}

// Adds what a Python program needs to find zerorun and its stand-in for DeepSpeed.
void add_python(JobSettings& settings, const LaunchOptions& options, const Program& program,
                const ProgramSearch& search, const Environment& environment) {
  settings.python = program.python;
  if (const auto package = program.python ? find_compat(search.launcher_directory) : std::nullopt) {
    settings.python_path = package->start.string();
  }
  if (const auto compat = choose_compat(program, options.deepspeed_compat, search, environment)) {
    settings.python_path += ":" + compat->site.string();
    settings.command_path = compat->bin.string();
  }
}

// All of the job's devices, for every rank: programs index them with LOCAL_RANK. But of MIG
// instances CUDA shows a process only the first (NVIDIA's MIG user guide, "CUDA Device
// Enumeration").
std::string visible_gpus_of(const JobSettings& job, int local_rank) {
  const bool are_instances = !job.gpus.empty() && job.gpus.front().starts_with("MIG-");
  return are_instances ? job.gpus[static_cast<size_t>(local_rank) % job.gpus.size()]
                       : fmt::format("{}", fmt::join(job.gpus, ","));
}

}  // namespace

Environment rank_variables(const JobSettings& job, int local_rank, int threads,
                           const Environment& inherited) {
  const int rank = job.cluster.first_rank() + local_rank;
  const std::string global = std::to_string(rank);
  const std::string world_size = std::to_string(job.cluster.world_size());
  const std::string local_world_size = std::to_string(job.cluster.this_host().slots.size());
  const std::string node = std::to_string(job.cluster.node_rank);
  const std::string nodes = std::to_string(job.cluster.hosts.size());
  Environment variables = {
      {"RANK", global},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"WORLD_SIZE", world_size},
      {"LOCAL_WORLD_SIZE", local_world_size},
      {"GROUP_RANK", node},
      {"GROUP_WORLD_SIZE", nodes},
      {"NODE_RANK", node},
      {"ROLE_RANK", global},
      {"ROLE_WORLD_SIZE", world_size},
      {"ROLE_NAME", job.role},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(job.meeting.restarts)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(job.cluster.max_restarts)},
      {"TORCHELASTIC_RUN_ID", job.meeting.run_id},
      // PyTorch's rank 0 serves the store: no launcher of ours does.
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"LOCAL_SIZE", local_world_size},  // DeepSpeed's names
      {"CROSS_RANK", node},
      {"CROSS_SIZE", nodes},
      {"MASTER_ADDR", job.meeting.master_addr},
      {"MASTER_PORT", std::to_string(job.meeting.master_port)},
      {"ZERORUN_JOB_SECRET", job.meeting.secret},
  };
  if (job.names_gpus) {
    variables["CUDA_VISIBLE_DEVICES"] = visible_gpus_of(job, local_rank);
  }
  if (!job.meeting.restart_reason.empty()) {
    variables["ZERORUN_RESTART_REASON"] = job.meeting.restart_reason;
  }
  if (rank == 0) variables["ZERORUN_STORE_FD"] = std::to_string(job.store_fd);
  const std::string given_threads = find_variable(inherited, "OMP_NUM_THREADS").value_or("");
  check_thread_count(given_threads);
  if (given_threads.empty()) variables["OMP_NUM_THREADS"] = std::to_string(threads);
  for (const auto& [name, value] : kGpuSettings) {
    if (!job.gpus.empty() && !find_variable(inherited, name)) variables[name] = value;
  }
  if (job.python) {
    variables["PYTHONPATH"] = join_paths({job.python_path, job.working_directory,
                                          find_variable(inherited, "PYTHONPATH").value_or("")});
    if (!job.command_path.empty()) {
      variables["PATH"] =
          join_paths({job.command_path, find_variable(inherited, "PATH").value_or("")});
    }
    variables.emplace("PYTHONUNBUFFERED", "1");
  }
  for (const auto& [name, value] : job.more) variables[name] = value;
  return variables;
}

Environment rank_environment(const Environment& inherited, const Environment& variables) {
  Environment environment = inherited;
  // A stale TORCHELASTIC_USE_AGENT_STORE makes every rank wait for a store that nobody serves.
  std::erase_if(environment, [](const auto& entry) {
    return entry.first.starts_with("TORCHELASTIC_") || entry.first == "ZERORUN_STORE_FD" ||
           entry.first == "ZERORUN_RESTART_REASON";
  });
  for (const auto& [name, value] : variables) environment[name] = value;
  return environment;
}

Listener reserve_master_port(const std::string& host, uint16_t port) {
  try {
    reserve_port(host, 0);
  } catch (const CommError& error) {
    fail<ConfigError>("--master_addr: {}", error.what());
  }
  try {
    return reserve_port("127.0.0.1", port);
  } catch (const CommError& error) {
    fail<ConfigError>("--master_port {}: {}; leave the option out for a free port", port,
                      error.what());
  }
}

Listener reserve_open_port(uint16_t port) {
  try {
    return reserve_port("::", port);  // IPv4 too
  } catch (const CommError&) {
    return reserve_port("0.0.0.0", port);  // a kernel without IPv6
  }
}

Job plan_job(const LaunchOptions& options, const ThisHost& here, const Cluster& cluster,
             const Meeting& meeting) {
  Job job;
  job.cluster = cluster;
  job.inherited = here.environment;
  const ProgramSearch search = ProgramSearch::here();
  const Program program = find_program(options.program, search);
  const Selection selection =
      take_slots(cluster.this_host().slots, options.request, here.resources);
  const std::vector<CpuShare> shares = divide_cpus(here.cores, nodes_of(selection));
  const std::optional<double> quota = ControlGroup().cpu_quota();
  job.error_folder = choose_temporary_path();
  job.log_dir = log_folder(options.output);
  job.meeting = decide_meeting(options, cluster, meeting, job.rendezvous);
  if (program.python) {
    job.no_package =
        absent_package(program.command.front(), job.inherited, search.launcher_directory);
  }
  JobSettings settings = settings_of(job, options, here, selection);
  add_python(settings, options, program, search, job.inherited);

  const int ranks = static_cast<int>(selection.slots.size());
  for (int rank = 0; rank < ranks; ++rank) {
    const CpuShare& share = shares[static_cast<size_t>(rank)];
    RankPlan plan;
    plan.command = rank_command(program, rank);
    plan.variables =
        rank_variables(settings, rank, limit_threads(share.threads, ranks, quota), job.inherited);
    if (!job.error_folder.empty()) {
      plan.error_file = fmt::format("{}/error_{}.json", job.error_folder, rank);
      plan.variables["TORCHELASTIC_ERROR_FILE"] = plan.error_file;
    }
    plan.streams = plan_streams(options.output, rank, rank == 0 && cluster.node_rank == 0);
    if (options.cpus.bind) plan.cpus = share.cpus;
    job.ranks.push_back(std::move(plan));
  }
  job.host = here.resources.name;
  job.note = notes_for(options, selection, job);
  job.grace_period = options.grace_period;
  return job;
}

std::string describe_job(const Job& job) {
  std::string text;
  int rank = job.cluster.first_rank();
  for (const RankPlan& plan : job.ranks) {
    text += fmt::format("rank {} on {}\n", rank++, job.host);
    for (const auto& [name, value] : plan.variables) {
      // A reader of the plan must not be able to join the job.
      const bool secret = name == "ZERORUN_JOB_SECRET";
      text += fmt::format("  env      {}={}\n", name, secret ? "<secret>" : shell_quote(value));
    }
    text += fmt::format("  cpus     {}\n",
                        plan.cpus.empty() ? "not bound" : format_cpu_list(plan.cpus));
    text += fmt::format("  command  {}\n", shell_line(plan.command));
  }
  return text;
}

}  // namespace zerorun
