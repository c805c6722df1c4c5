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

// The value, also when it is empty. The name must be in the table of config/env.h.
std::optional<std::string> find_variable(const Environment& environment, const std::string& name);
// As execve wants it: "NAME=value".
std::vector<std::string> environment_block(const Environment& environment);

// The place of one host's ranks among all ranks of a job.
struct HostPlace {
  int local_world_size = 1;
  int first_rank = 0;  // the rank of this host's first process
  int world_size = 1;
  int node_rank = 0;
  int nodes = 1;
};

// The facts of a run that torchrun tells its ranks.
struct RunSettings {
  std::string id = "none";
  std::string role = "default";
  int restarts = 0;  // so far
  int max_restarts = 0;
  std::string restart_reason{};  // of the last one, or empty
};

// Settings that all ranks of a job share on one host.
struct JobSettings {
  HostPlace place;
  RunSettings run;
  std::string master_addr;
  uint16_t master_port = 0;
  int store_fd = -1;  // the socket that holds the port, for rank 0
  std::string secret;
  std::vector<std::string> gpus;  // empty for CPU ranks
  bool python = false;
  std::string python_path;   // what comes before PYTHONPATH: folders joined by ':', or empty
  std::string command_path;  // what comes before PATH
  std::string working_directory;
  Environment more{};  // of every rank
};

// The variables that tell a rank its place: the union of what torchrun, DeepSpeed's launcher and
// zerorun programs read. `threads` becomes OMP_NUM_THREADS unless the user has set it.
Environment rank_variables(const JobSettings& job, int local_rank, int threads,
                           const Environment& inherited);
// `inherited` with `variables` on top and without what an enclosing torchrun left behind.
Environment rank_environment(const Environment& inherited, const Environment& variables);

// 32 random bytes in hexadecimal.
std::string make_secret();

}  // namespace zerorun
