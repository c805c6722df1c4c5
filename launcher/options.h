#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/environment.h"
#include "launcher/program.h"
#include "launcher/ranks/resources.h"

namespace zerorun {

// The hosts that the command line asks for, as text; empty = not given.
struct HostRequest {
  std::string hostfile{};
  std::string count{};             // --num_nodes or --nnodes: N or MIN:MAX
  std::optional<int> node_rank{};  // --node_rank
  std::string launcher{};          // --launcher: ssh, pdsh, slurm, openmpi, ...
  bool by_hand = false;            // --no_ssh: somebody starts this command on every host
  bool force_multi = false;        // start through the launcher also where this is the only host
  bool standalone = false;         // this host alone, whatever else is said
  std::string master_addr{};
  uint16_t master_port = 0;  // 0 = a free one
  std::string backend{};     // --rdzv_backend: static or c10d
  std::string endpoint{};    // --rdzv_endpoint: HOST[:PORT]
  std::string run_id{};      // --rdzv_id
  std::string local_addr{};  // the address under which others reach this host
  // The time that the launchers of all hosts have to come, and ranks to answer each other; nothing:
  // the usual.
  std::optional<double> join_timeout_s{};
  std::optional<double> comm_timeout_s{};
};

// How the launchers on other hosts are started and talk to this one.
struct RemoteRequest {
  std::vector<std::string> arguments{};  // extra words for ssh, pdsh, srun or mpirun
  int ssh_port = 0;                      // 0 = ssh's own default
  bool check = true;                     // try ssh on every host first
  std::vector<std::string> exports{};    // names of variables that go to the other hosts too
  std::string venv_script{};             // sourced on the other hosts first
  std::string interface {};              // the network interface that ranks talk through
};

// Restarts of a job that failed.
struct RestartRequest {
  int max_restarts = 0;
  int min_nodes = 0;  // --min_elastic_nodes, --max_elastic_nodes; 0 = not given
  int max_nodes = 0;
};

// The terminal and files that the output of ranks goes to. The streams are torchrun's: "3" or
// "0:1,2:3", by local rank, where 1 is standard output, 2 standard error and 3 both.
struct OutputRequest {
  std::string log_dir{};
  std::string redirects{};         // to files alone
  std::string tee{};               // to files and the terminal
  std::vector<int> shown_ranks{};  // only these local ranks print; empty = all
  bool quiet = false;              // the launcher says only what is wrong
};

// The CPUs that ranks are bound to.
struct CpuRequest {
  bool bind = true;
  std::string list{};  // those to divide among the ranks, as 0-3,8; empty = all
};

// The command line `zerorun [options] PROGRAM [arguments]`.
struct LaunchOptions {
  RankRequest request;
  HostRequest hosts;
  RemoteRequest remote;
  RestartRequest restarts;
  OutputRequest output;
  ProgramRequest program;
  std::string role = "default";  // torchrun's name for a group of ranks
  std::chrono::milliseconds grace_period{30000};
  CpuRequest cpus;
  std::vector<std::string> notes;  // on options that have no effect here
  bool deepspeed_compat = false;
  bool save_pid = false;  // in /tmp/PID.deepspeed, as DeepSpeed's launcher
  bool dry_run = false;
  bool help = false;
  bool version = false;
};

// `arguments` without the launcher's own name. Options come first; from PROGRAM on nothing is
// looked at. Throws ConfigError: for an unknown option it names the nearest one, for an option of
// other launchers that cannot work here it says so. `environment` has torchrun's variables PET_*,
// each of which gives the option of its name where the command line does not.
LaunchOptions parse_options(const std::vector<std::string>& arguments,
                            const Environment& environment = {});

// `tools`: the text about commands that stands between the options and the examples.
std::string help_text(const std::string& tools);

}  // namespace zerorun
