#pragma once

#include "launcher/hosts/host_filter.h"
#include "tests/common.h"

namespace zerorun::testing {

using Words = std::vector<std::string>;

// The words of a command line without quotes.
inline Words words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

// The variables of schedulers, which the machine that runs these tests may have.
inline constexpr auto kSchedulers = std::to_array<const char*>(
    {"RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_NODELIST",
     "SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE",
     "SLURM_NTASKS", "SLURM_TASKS_PER_NODE", "SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID",
     "SLURMD_NODENAME", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"});

// A machine of 4 CPUs and as many GPUs as CUDA_VISIBLE_DEVICES leaves of `gpus`.
inline ThisHost worker(int gpus, const Environment& more = {},
                       const std::optional<std::string>& visible = std::nullopt) {
  ThisHost here;
  here.environment = more;
  here.resources.name = "worker-1";
  here.resources.gpus = visible_gpus(visible, gpus);
  here.resources.cpus = 4;
  return here;
}

inline std::string text_of(const Cluster& cluster) {
  constexpr auto kNames = std::to_array({"", "hand", "ssh", "pdsh", "slurm", "openmpi"});
  Words hosts;
  for (const HostSlots& host : cluster.hosts) {
    hosts.push_back(fmt::format("{}:{}", host.login(), fmt::join(host.slots, ",")));
  }
  const std::string start = kNames[static_cast<size_t>(cluster.start)];
  return fmt::format("{}{}{}", fmt::join(hosts, " "), start.empty() ? "" : " by ", start);
}

// The choice for a command line, with nothing but `here` in the environment.
inline ClusterChoice choose(Words words, const ThisHost& here) {
  for (const char* name : kSchedulers) unsetenv(name);
  for (const auto& [name, value] : here.environment) setenv(name.c_str(), value.c_str(), 1);
  words.emplace_back("x.py");
  const LaunchOptions options = parse_options(words, here.environment);
  // Processes that later tests start must not find these variables.
  struct Cleaner {
    const Environment& variables;
    ~Cleaner() {
      for (const auto& variable : variables) unsetenv(variable.first.c_str());
    }
  } const cleaner = {here.environment};
  return choose_cluster(options, here);
}

// The same as text.
inline std::string chosen(const Words& words, const ThisHost& here) {
  return text_of(choose(words, here).cluster);
}

}  // namespace zerorun::testing
