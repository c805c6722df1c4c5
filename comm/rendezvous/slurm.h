#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zerorun {

// The number that a variable has; nullopt if it is not set. Throws ConfigError for anything else.
std::optional<int> read_int(std::string_view name, long low = 0,
                            long high = std::numeric_limits<int>::max());

// A port for a job of this number, below those that the kernel gives to clients.
inline constexpr uint32_t kJobPorts = 15000;
constexpr uint16_t job_port(uint32_t number) {
  return static_cast<uint16_t>(15000 + number % kJobPorts);
}

// Parsers of the variables that Slurm sets in the environment of its jobs.

// Expands a host list: "n[1-3,5],login" -> {"n1", "n2", "n3", "n5", "login"}; leading zeros are
// kept. Throws ConfigError if the text is malformed or lists more hosts than any cluster has.
std::vector<std::string> expand_host_list(std::string_view list);

// Expands numbers of tasks by node: "4(x2),3" -> {4, 4, 3}. Throws ConfigError if the text is
// malformed.
std::vector<int> expand_task_counts(std::string_view counts);

// The srun step that this process belongs to. A batch script, the shell of salloc and a process
// outside Slurm belong to none; they are a single process, whatever the allocation contains.
struct SlurmStep {
  int task = 0;        // index of this process in the step
  int tasks = 1;       // number of processes in the step
  int local_task = 0;  // index of this process on its node
  int node = 0;        // index of this node in the step
  std::vector<std::string> hosts;
  std::vector<int> tasks_of;  // number of processes by host
};
// The step of this process; nullopt if it belongs to none. Throws ConfigError if the variables
// contradict each other.
std::optional<SlurmStep> slurm_step();

// The default port for the rendezvous of this allocation's processes, or of this step's. It is the
// same for all of them and usually differs between jobs.
uint16_t slurm_port();

}  // namespace zerorun
