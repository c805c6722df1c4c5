#include "comm/rendezvous/slurm.h"

#include <algorithm>
#include <limits>

#include "config/env.h"
#include "core/check.h"
#include "core/parse_number.h"
#include "core/printable.h"

namespace zerorun {

namespace {

// Far more than any cluster has; bounds what a damaged list makes us allocate.
constexpr size_t kMaxHosts = 65536;

[[noreturn]] void fail_host_list(std::string_view list) {
  fail<ConfigError>("'{}' is not a list of hosts as Slurm writes it, such as n[1-3,5]",
                    printable(list));
}

// Adds the hosts of one part, "n[01-03,5]-ib" or "login"; brackets may come several times.
void expand_part(std::string_view part, std::string_view list, std::vector<std::string>& hosts) {
  std::vector<std::string> names = {""};
  while (!part.empty()) {
    const size_t open = std::min(part.find('['), part.size());
    for (std::string& name : names) name += part.substr(0, open);
    part.remove_prefix(open);
    if (part.empty()) break;
    const size_t close = part.find(']');
    if (close == std::string_view::npos) fail_host_list(list);
    std::string_view ranges = part.substr(1, close - 1);
    part.remove_prefix(close + 1);
    std::vector<std::string> numbers;
    for (bool more = true; more;) {
      const size_t comma = ranges.find(',');
      const std::string_view range = ranges.substr(0, comma);
      const std::string_view first = range.substr(0, range.find('-'));
      const std::string_view last =
          first.size() == range.size() ? first : range.substr(first.size() + 1);
      const auto from = parse_number<uint32_t>(first);
      const auto to = parse_number<uint32_t>(last);
      if (!from || !to || *to < *from || numbers.size() + (*to - *from) >= kMaxHosts) {
        fail_host_list(list);
      }
      for (uint64_t number = *from; number <= *to; ++number) {  // *to may be the last uint32_t
        numbers.push_back(fmt::format("{:0{}}", number, first.size()));
      }
      more = comma != std::string_view::npos;
      if (more) ranges.remove_prefix(comma + 1);
    }
    if (names.size() * numbers.size() > kMaxHosts) fail_host_list(list);
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      for (const std::string& number : numbers) longer.push_back(name + number);
    }
    names = std::move(longer);
  }
  if (names.front().empty() || hosts.size() + names.size() > kMaxHosts) fail_host_list(list);
  hosts.insert(hosts.end(), names.begin(), names.end());
}

// A number of the step, which older versions of Slurm give for the job alone.
std::optional<int> step_number(std::string_view of_step, std::string_view of_job) {
  const std::optional<int> number = read_int(of_step);
  return number ? number : read_int(of_job);
}

}  // namespace

std::vector<std::string> expand_host_list(std::string_view list) {
  std::vector<std::string> hosts;
  size_t begin = 0;
  bool inside = false;
  for (size_t i = 0; i <= list.size(); ++i) {
    if (i < list.size() && list[i] == '[') inside = true;
    if (i < list.size() && list[i] == ']') inside = false;
    if (i < list.size() && (list[i] != ',' || inside)) continue;
    expand_part(list.substr(begin, i - begin), list, hosts);
    begin = i + 1;
  }
  return hosts;
}

std::vector<int> expand_task_counts(std::string_view counts) {
  const std::string_view all = counts;
  std::vector<int> tasks;
  for (bool more = true; more;) {
    const size_t comma = counts.find(',');
    std::string_view part = counts.substr(0, comma);
    uint32_t times = 1;
    if (const size_t open = part.find("(x"); open != std::string_view::npos) {
      std::string_view repeat = part.substr(open + 2);
      if (repeat.ends_with(')')) repeat.remove_suffix(1);
      times = parse_number<uint32_t>(repeat).value_or(0);
      part = part.substr(0, open);
    }
    const std::optional<uint32_t> count = parse_number<uint32_t>(part);
    if (!count || *count > kMaxHosts || times == 0 || tasks.size() + times > kMaxHosts) {
      fail<ConfigError>("'{}' is not a list of task counts as Slurm writes it, such as 4(x2),3",
                        printable(all));
    }
    tasks.insert(tasks.end(), times, static_cast<int>(*count));
    more = comma != std::string_view::npos;
    if (more) counts.remove_prefix(comma + 1);
  }
  return tasks;
}

std::optional<SlurmStep> slurm_step() {
  // The interactive shell of salloc and the batch script have numbers near 2^32, if any.
  constexpr uint32_t kFirstSpecialStep = 0xfffffff0U;
  const std::optional<std::string> id = read_environment("SLURM_STEP_ID");
  const std::optional<uint32_t> number = id ? parse_number<uint32_t>(*id) : std::nullopt;
  if (!number || *number >= kFirstSpecialStep) return std::nullopt;
  const std::optional<int> task = read_int("SLURM_PROCID");
  const std::optional<int> tasks = step_number("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS");
  if (!task || !tasks) return std::nullopt;
  SlurmStep step = {.task = *task, .tasks = *tasks};
  if (step.task >= step.tasks) {
    fail<ConfigError>("SLURM_PROCID={} is not below the step's number of tasks, {}", step.task,
                      step.tasks);
  }
  step.local_task = read_int("SLURM_LOCALID").value_or(0);
  step.node = read_int("SLURM_NODEID").value_or(0);
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    const auto list = read_environment(name);
    if (list && step.hosts.empty()) step.hosts = expand_host_list(*list);
  }
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    const auto counts = read_environment(name);
    if (counts && step.tasks_of.empty()) step.tasks_of = expand_task_counts(*counts);
  }
  return step;
}

uint16_t slurm_port() {
  const auto value = [](std::string_view name) {
    constexpr long kMaxId = std::numeric_limits<uint32_t>::max();
    return static_cast<uint32_t>(read_environment_int(name, 0, kMaxId).value_or(0));
  };
  // Steps of one job may run side by side.
  return job_port(value("SLURM_JOB_ID") + 7919 * (value("SLURM_STEP_ID") % kJobPorts));
}

}  // namespace zerorun
