#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/env.h"

namespace zerorun {

// Environment variables by name.
using Environment = std::map<std::string, std::string>;

// The value of a variable, which may be empty; nullopt if it is not set. The name has to be in the
// table of config/env.h.
std::optional<std::string> find_variable(const Environment& environment, const std::string& name);
// The variables as execve takes them: "NAME=value".
std::vector<std::string> environment_block(const Environment& environment);

// The place of one host's ranks among all ranks of a job.
struct HostPlace {
  int local_world_size = 1;
  int first_rank = 0;  // the rank of this host's first process
  int world_size = 1;
  int node_rank = 0;
  int nodes = 1;
};

// The settings of a run that torchrun also passes to its ranks.
struct RunSettings {
  std::string id = "none";
  std::string role = "default";
  int restarts = 0;  // so far
  int max_restarts = 0;
  std::string restart_reason{};  // why the last restart happened, or empty
};

// The settings that all ranks of a job on one host share.
struct JobSettings {
  HostPlace place;
  RunSettings run;
  std::string master_addr;
  uint16_t master_port = 0;
  int store_fd = -1;  // the socket that reserves the port, for rank 0
  std::string secret;
  std::vector<std::string> gpus;  // empty for CPU ranks
  // False: CUDA_VISIBLE_DEVICES stays as it is. The program may find GPUs that the launcher did
  // not.
  bool names_gpus = true;
  bool python = false;
  std::string python_path;   // prepended to PYTHONPATH: folders joined by ':', or empty
  std::string command_path;  // prepended to PATH
  std::string working_directory;
  Environment more{};  // further variables of every rank
};

// The variables that tell a rank its place in the job: all that programs for torchrun, for
// DeepSpeed's launcher and for zerorun read. OMP_NUM_THREADS is `threads` unless the user has set
// it.
Environment rank_variables(const JobSettings& job, int local_rank, int threads,
                           const Environment& inherited);
// `inherited` without variables of an enclosing torchrun, overridden by `variables`.
Environment rank_environment(const Environment& inherited, const Environment& variables);

// Returns 32 random bytes in hexadecimal.
std::string make_secret();

}  // namespace zerorun
