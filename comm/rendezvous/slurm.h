#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zerorun {

// The texts that Slurm leaves in the environment of its jobs.

// "n[1-3,5],login" -> {"n1", "n2", "n3", "n5", "login"}, with leading zeros as they are written.
// Throws ConfigError for text of another form, or of more hosts than any cluster has.
std::vector<std::string> expand_host_list(std::string_view list);

// Tasks by node: "4(x2),3" -> {4, 4, 3}. Throws ConfigError for text of another form.
std::vector<int> expand_task_counts(std::string_view counts);

// The step of srun that this process is a task of. A batch script, the shell of salloc and a
// process outside Slurm are in none: they are one process, whatever the allocation has.
struct SlurmStep {
  int task = 0;        // number of this process
  int tasks = 1;       // of the step
  int local_task = 0;  // on this node
  int node = 0;        // number of this node among those of the step
  std::vector<std::string> hosts;
  std::vector<int> tasks_of;  // by host
};
// Throws ConfigError when the variables contradict each other.
std::optional<SlurmStep> slurm_step();

// The port on which the processes of this allocation, or of this step of it, meet unless they are
// told another: the same for all of them, another one for other jobs most of the time.
uint16_t slurm_port();

}  // namespace zerorun
