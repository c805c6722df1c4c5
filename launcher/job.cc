#include "launcher/job.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>

#include "core/check.h"
#include "launcher/hosts/address.h"
#include "launcher/python_package.h"
#include "launcher/ranks/cpus.h"
#include "launcher/ranks/error_folder.h"
#include "launcher/ranks/gpu_nodes.h"
#include "launcher/ranks/process.h"
#include "launcher/ranks/resources.h"
#include "launcher/words.h"
#include "os/address.h"
#include "os/cgroup.h"
#include "zerorun/error.h"

namespace zerorun {

namespace {

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
  if (options.hosts.comm_timeout_s) {
    variables["ZERORUN_COMM_TIMEOUT"] = fmt::format("{}", *options.hosts.comm_timeout_s);
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
  return ErrorFolder::choose_path() + "_logs";
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
  settings.place = {.local_world_size = static_cast<int>(selection.slots.size()),
                    .first_rank = job.cluster.first_rank(),
                    .world_size = job.cluster.world_size(),
                    .node_rank = job.cluster.node_rank,
                    .nodes = static_cast<int>(job.cluster.hosts.size())};
  settings.run = {.id = job.meeting.run_id,
                  .role = options.role,
                  .restarts = job.meeting.restarts,
                  .max_restarts = job.cluster.max_restarts,
                  .restart_reason = job.meeting.restart_reason};
  settings.master_addr = job.meeting.master_addr;
  settings.master_port = job.meeting.master_port;
  if (job.rendezvous) settings.store_fd = job.rendezvous->get();
  settings.secret = job.meeting.secret;
  settings.gpus = selection.gpus;
  settings.names_gpus = !selection.none_found || here.resources.own_program;
  settings.working_directory = std::filesystem::current_path().string();
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

}  // namespace

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
  job.error_folder = ErrorFolder::choose_path();
  job.log_dir = log_folder(options.output);
  job.meeting = decide_meeting(options, cluster, meeting, job.rendezvous);
  if (program.python) {
    job.no_package =
        absent_package(program.command.front(), job.inherited, search.launcher_directory);
  }
  JobSettings settings = settings_of(job, options, here, selection);
  add_python(settings, options, program, search, job.inherited);

  const int ranks = settings.place.local_world_size;
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
    std::vector<std::string> words;
    std::transform(plan.command.begin(), plan.command.end(), std::back_inserter(words),
                   shell_quote);
    text += fmt::format("  command  {}\n", fmt::join(words, " "));
  }
  return text;
}

}  // namespace zerorun
