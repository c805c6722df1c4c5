#include "launcher/ranks/resources.h"

#include <algorithm>
#include <filesystem>

#include "core/check.h"
#include "core/parse_number.h"
#include "launcher/hosts/cluster.h"
#include "launcher/hosts/host_filter.h"
#include "launcher/words.h"
#include "os/process_identity.h"

namespace zerorun {

namespace {

// The slots that a filter leaves of `available` ones of this host, in order.
std::vector<int> filter_slots(const RankRequest& request, const HostResources& host, int available,
                              std::string_view device) {
  const bool including = !request.include.empty();
  const std::string_view option = including ? "--include" : "--exclude";
  const std::string& text = including ? request.include : request.exclude;
  std::vector<bool> named(static_cast<size_t>(available), false);
  for (const HostFilter& filter : parse_host_filter(option, text)) {
    if (!is_this_host(filter.host, host.name)) {
      fail<ConfigError>(
          "{} '{}' names host '{}', which no --hostfile lists; this one is 'localhost' or '{}'",
          option, text, filter.host, host.name);
    }
    if (filter.slots.empty()) named.assign(named.size(), true);
    for (const int slot : filter.slots) {
      if (slot >= available) {
        fail<ConfigError>("{} '{}' names slot {}, but this host has {} {} slot{} (0 to {})", option,
                          text, slot, available, device, available == 1 ? "" : "s", available - 1);
      }
      named[static_cast<size_t>(slot)] = true;
    }
  }
  std::vector<int> kept;
  for (int slot = 0; slot < available; ++slot) {
    if (named[static_cast<size_t>(slot)] == including) kept.push_back(slot);
  }
  if (kept.empty()) fail<ConfigError>("{} '{}' leaves no {} to run on", option, text, device);
  return kept;
}

// The requested number of ranks, or nothing when the default is asked for (-1 is DeepSpeed's word
// for it).
std::optional<int> requested_count(const RankRequest& request, const HostResources& host,
                                   bool on_cpu) {
  if (request.count == "auto") return on_cpu ? std::optional(host.cpus) : std::nullopt;
  if (request.count == "cpu") return host.cpus;
  return number_of_ranks(request);
}

std::vector<int> select_slots(const RankRequest& request, const HostResources& host, bool on_gpus) {
  const int devices = static_cast<int>(host.gpus.size());
  if (!request.include.empty() || !request.exclude.empty()) {
    // Without GPUs a slot is just a rank: any CPU can have one, and by default each NUMA node has.
    const bool any_cpu =
        !request.include.empty() &&
        std::ranges::all_of(parse_host_filter("--include", request.include),
                            [](const HostFilter& filter) { return !filter.slots.empty(); });
    const int available = on_gpus ? devices : any_cpu ? host.cpus : host.numa_nodes;
    return filter_slots(request, host, available, on_gpus ? "GPU" : "CPU");
  }
  const int all = on_gpus ? devices : host.numa_nodes;
  const int count = requested_count(request, host, !on_gpus).value_or(all);
  if (on_gpus && count > devices && !host.share_gpus) {
    fail<ConfigError>("--num_gpus {}: this host offers {} GPU{} ({})", count, devices,
                      devices == 1 ? "" : "s", fmt::join(host.gpus, ","));
  }
  return first_slots(count);
}

// What a user who did not ask for CPU ranks is told of them.
std::string note_of_cpu_ranks(const std::string& why, int ranks, int cpus) {
  std::string note = fmt::format("{}: {} CPU rank{}", why, ranks, ranks == 1 ? "" : "s");
  if (ranks <= cpus) return note;
  return note + fmt::format(" share {} CPU{}; a job is fastest with at most one rank for each CPU",
                            cpus, cpus == 1 ? "" : "s");
}

std::vector<int> chosen_cpus(const std::string& core_list) {
  std::vector<int> allowed = allowed_cpus();
  if (core_list.empty()) return allowed;
  for (const std::string_view part : split(core_list, ',')) {
    if (!parse_cpu_list(part).empty() && std::ranges::count(part, '-') < 2 &&
        part.find_first_not_of("0123456789-") == std::string_view::npos) {
      continue;
    }
    fail<ConfigError>("--bind_core_list '{}': expected numbers of CPUs, as in 0-3,8", core_list);
  }
  std::vector<int> wanted = parse_cpu_list(core_list);
  for (const int cpu : wanted) {
    if (std::ranges::find(allowed, cpu) == allowed.end()) {
      fail<ConfigError>("--bind_core_list '{}': CPU {} is not one that this process may use ({})",
                        core_list, cpu, format_cpu_list(allowed));
    }
  }
  return wanted;
}

}  // namespace

void check_combination(const RankRequest& request, int nodes) {
  if (!request.include.empty() && !request.exclude.empty()) {
    fail<ConfigError>("--include and --exclude are mutually exclusive; use one of them");
  }
  const bool filtered = !(request.include.empty() && request.exclude.empty());
  const std::string_view filter = request.include.empty() ? "--exclude" : "--include";
  if (filtered && number_of_ranks(request)) {
    fail<ConfigError>("--num_gpus cannot be combined with {}, which already says how many", filter);
  }
  if (filtered && nodes > 0) {
    fail<ConfigError>("--num_nodes cannot be combined with {}, which already says which", filter);
  }
  if (request.count == "cpu" && request.accelerator == Accelerator::cuda) {
    fail<ConfigError>("--num_gpus cpu contradicts --accelerator cuda");
  }
  if (request.count == "gpu" && request.accelerator == Accelerator::cpu) {
    fail<ConfigError>("--num_gpus gpu contradicts --accelerator cpu");
  }
}

std::optional<int> number_of_ranks(const RankRequest& request) {
  for (const char* word : {"", "-1", "auto", "gpu", "cpu"}) {
    if (request.count == word) return std::nullopt;
  }
  const std::optional<int> count = parse_number(request.count);
  if (!count || *count < 1 || *count > kMaxRanksPerHost) {
    fail<ConfigError>("--num_gpus '{}': expected a number from 1 to {}, auto, gpu or cpu",
                      request.count, kMaxRanksPerHost);
  }
  return count;
}

std::vector<std::string> visible_gpus(const std::optional<std::string>& visible,
                                      int gpus_on_machine) {
  std::vector<std::string> gpus;
  if (!visible) {
    for (int gpu = 0; gpu < gpus_on_machine; ++gpu) gpus.push_back(std::to_string(gpu));
    return gpus;
  }
  if (gpus_on_machine == 0) return gpus;
  for (const std::string_view entry : split(*visible, ',')) {
    const std::string_view name = trim(entry);
    const std::optional<int> index = parse_number(name);
    const bool valid = index ? *index >= 0 && *index < gpus_on_machine
                             : name.starts_with("GPU-") || name.starts_with("MIG-");
    if (!valid) break;
    gpus.emplace_back(name);
  }
  return gpus;
}

bool runs_on_gpus(const RankRequest& request, const HostResources& host) {
  const bool wants_gpu = request.accelerator == Accelerator::cuda || request.count == "gpu";
  const bool wants_cpu = request.accelerator == Accelerator::cpu || request.count == "cpu";
  if (wants_gpu && host.gpus.empty()) {
    fail<ConfigError>(
        "GPUs are asked for, but this host shows none (no /dev/nvidia*, or CUDA_VISIBLE_DEVICES "
        "hides them); --accelerator cpu runs CPU ranks");
  }
  const auto& [problem, driver_fails] = host.cuda_problem;
  const bool counts =
      number_of_ranks(request) || !request.include.empty() || !request.exclude.empty();
  if (!problem.empty() && (wants_gpu || (counts && !wants_cpu && driver_fails))) {
    fail<ConfigError>("GPUs are asked for, but {}; --accelerator cpu runs CPU ranks", problem);
  }
  return !wants_cpu && !host.gpus.empty() && problem.empty();
}

Selection take_slots(const std::vector<int>& slots, const RankRequest& request,
                     const HostResources& host) {
  Selection selection = {.slots = slots};
  if (!runs_on_gpus(request, host)) {
    const bool asked = request.accelerator == Accelerator::cpu || request.count == "cpu";
    selection.none_found = !asked && host.gpus.empty();
    if (!asked) {
      const std::string& why = host.gpus.empty() ? host.why_no_gpu : host.cuda_problem.text;
      selection.note = note_of_cpu_ranks(why, static_cast<int>(slots.size()), host.cpus);
    }
    return selection;
  }
  const auto beyond = std::ranges::find_if(
      slots, [&host](int slot) { return slot >= static_cast<int>(host.gpus.size()); });
  if (beyond != slots.end() && host.share_gpus) {
    selection.gpus = host.gpus;
    return selection;
  }
  if (beyond != slots.end()) {
    fail<ConfigError>("slot {} of host {}: it offers {} GPU{} ({})", *beyond, host.name,
                      host.gpus.size(), host.gpus.size() == 1 ? "" : "s",
                      fmt::join(host.gpus, ","));
  }
  for (const int slot : slots) selection.gpus.push_back(host.gpus[static_cast<size_t>(slot)]);
  return selection;
}

Selection select_ranks(const RankRequest& request, const HostResources& host) {
  check_combination(request, 0);
  return take_slots(select_slots(request, host, runs_on_gpus(request, host)), request, host);
}

int count_gpus() {
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view kPrefix = "nvidia";
    if (name.starts_with(kPrefix) && parse_number(name.substr(kPrefix.size()))) ++count;
  }
  return count;
}

ThisHost look_at_this_host(Accelerator accelerator, bool own_program,
                           const std::string& core_list) {
  ThisHost here;
  here.environment = inherited_environment();
  here.cores = group_by_core(chosen_cpus(core_list));
  HostResources& resources = here.resources;
  resources.name = host_name();
  const auto visible = find_variable(here.environment, "CUDA_VISIBLE_DEVICES");
  const int gpus = count_gpus();
  resources.gpus = visible_gpus(visible, gpus);
  if (gpus > 0 && resources.gpus.empty() && !hides_all_gpus()) {
    resources.why_no_gpu = fmt::format("CUDA_VISIBLE_DEVICES={} shows none of this host's {} GPU{}",
                                       visible.value_or(""), gpus, gpus == 1 ? "" : "s");
  }
  resources.cpus = count_cpus(here.cores);
  resources.numa_nodes = count_nodes(here.cores);
  resources.own_program = own_program;
  if (own_program && !resources.gpus.empty() && accelerator != Accelerator::cpu) {
    resources.cuda_problem = ask_for_cuda_problem(driver_patience());
  }
  resources.share_gpus = is_on(find_variable(here.environment, "ZERORUN_SHARE_GPUS").value_or(""));
  return here;
}

}  // namespace zerorun
