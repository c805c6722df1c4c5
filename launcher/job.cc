#include "launcher/job.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>

#include "config/env.h"
#include "launcher/address.h"
#include "launcher/cpus.h"
#include "launcher/cuda_probe.h"
#include "launcher/deepspeed_compat.h"
#include "launcher/gpu_nodes.h"
#include "launcher/process.h"
#include "launcher/resources.h"
#include "os/cgroup.h"
#include "os/process_identity.h"

namespace zerorun {

namespace {

HostResources probe_host(const std::vector<Core>& cores, const Environment& environment,
                         Accelerator accelerator) {
  HostResources host;
  host.name = host_name();
  host.gpus = visible_gpus(find_variable(environment, "CUDA_VISIBLE_DEVICES"), count_gpus());
  host.cpus = count_cpus(cores);
  host.numa_nodes = count_nodes(cores);
  if (!host.gpus.empty() && accelerator != Accelerator::cpu) {
    host.cuda_problem = ask_for_cuda_problem();
  }
  host.share_gpus = is_on(find_variable(environment, "ZERORUN_SHARE_GPUS").value_or(""));
  return host;
}

// A container's share of CPU time bounds the threads even if it may use every CPU.
int limit_threads(int threads, int ranks, const std::optional<double>& quota) {
  if (!quota) return threads;
  return std::clamp(static_cast<int>(std::ceil(*quota / ranks)), 1, threads);
}

// The node of each rank's GPU, by rank.
std::vector<std::optional<int>> nodes_of(const Selection& selection) {
  std::vector<std::optional<int>> nodes(static_cast<size_t>(selection.ranks));
  if (selection.gpus.empty()) return nodes;
  const std::vector<std::optional<int>> of_gpus = gpu_nodes(selection.gpus);
  for (size_t rank = 0; rank < nodes.size(); ++rank) nodes[rank] = of_gpus[rank % of_gpus.size()];
  return nodes;
}

// The word as a shell needs it.
std::string quote(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

}  // namespace

Job plan_job(const LaunchOptions& options) {
  open_standard_streams();  // so that the socket below gets none of their numbers
  Job job;
  job.inherited = inherited_environment();
  const ProgramSearch search = ProgramSearch::here();
  const Program program = find_program(options.program, search);
  const std::vector<Core> cores = group_by_core(allowed_cpus());
  const HostResources host = probe_host(cores, job.inherited, options.request.accelerator);
  const Selection selection = select_ranks(options.request, host);
  const std::vector<CpuShare> shares = divide_cpus(cores, nodes_of(selection));
  const std::optional<double> quota = ControlGroup().cpu_quota();

  JobSettings settings;
  settings.ranks = selection.ranks;
  settings.master_addr = options.master_addr;
  Listener rendezvous = reserve_master_port(options.master_addr, options.master_port);
  settings.master_port = rendezvous.port;
  settings.store_fd = rendezvous.socket.get();
  job.rendezvous = std::make_shared<FileDescriptor>(std::move(rendezvous.socket));
  settings.secret = make_secret();
  settings.gpus = selection.gpus;
  settings.python = program.python;
  if (const auto package = program.python ? find_compat(search.launcher_directory) : std::nullopt) {
    settings.python_path = package->start.string();
  }
  if (const auto compat = choose_compat(program, options.deepspeed_compat, search, job.inherited)) {
    settings.python_path += ":" + compat->site.string();
    settings.command_path = compat->bin.string();
  }
  settings.working_directory = std::filesystem::current_path().string();

  for (int rank = 0; rank < selection.ranks; ++rank) {
    const CpuShare& share = shares[static_cast<size_t>(rank)];
    const int threads = limit_threads(share.threads, selection.ranks, quota);
    RankPlan plan;
    plan.command = rank_command(program, rank);
    plan.variables = rank_variables(settings, rank, threads, job.inherited);
    if (!options.no_bind) plan.cpus = share.cpus;
    job.ranks.push_back(std::move(plan));
  }
  job.host = host.name;
  job.note = selection.note;
  job.log_dir = options.log_dir;
  job.grace_period = options.grace_period;
  return job;
}

std::string describe_job(const Job& job) {
  std::string text;
  const auto out = std::back_inserter(text);
  for (size_t rank = 0; rank < job.ranks.size(); ++rank) {
    const RankPlan& plan = job.ranks[rank];
    fmt::format_to(out, "rank {} on {}\n", rank, job.host);
    for (const auto& [name, value] : plan.variables) {
      // A reader of the plan must not be able to join the job.
      const bool secret = name == "ZERORUN_JOB_SECRET";
      fmt::format_to(out, "  env      {}={}\n", name, secret ? "<secret>" : quote(value));
    }
    fmt::format_to(out, "  cpus     {}\n",
                   plan.cpus.empty() ? "not bound" : format_cpu_list(plan.cpus));
    std::vector<std::string> words;
    std::transform(plan.command.begin(), plan.command.end(), std::back_inserter(words), quote);
    fmt::format_to(out, "  command  {}\n", fmt::join(words, " "));
  }
  return text;
}

}  // namespace zerorun
