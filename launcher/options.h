#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/environment.h"
#include "launcher/program.h"
#include "launcher/ranks/resources.h"

namespace CLI {
class App;
}  // namespace CLI

namespace zerorun {

// The hosts that the command line requests, as text; empty = not given.
struct HostRequest {
  std::optional<std::string> hostfile{};  // empty: none, not the default one either
  std::string count{};                    // --num_nodes or --nnodes: N or MIN:MAX
  std::optional<int> node_rank{};         // --node_rank
  std::string launcher{};                 // --launcher: ssh, pdsh, slurm, openmpi, ...
  bool by_hand = false;                   // --no_ssh: the user starts this command on every host
  bool force_multi = false;               // use --launcher even if this is the only host
  bool standalone = false;                // this host alone, regardless of other options
  std::string master_addr{};
  uint16_t master_port = 0;             // 0 = a free one
  std::string backend{};                // --rdzv_backend: static or c10d
  std::string endpoint{};               // --rdzv_endpoint: HOST[:PORT]
  std::string run_id{};                 // --rdzv_id
  std::string local_addr{};             // the address at which others reach this host
  std::optional<int> join_timeout_s{};  // to wait for all launchers; nullopt: the default
};

// How launchers on other hosts are started and communicate with this one.
struct RemoteRequest {
  std::vector<std::string> arguments{};  // extra words for ssh, pdsh, srun or mpirun
  int ssh_port = 0;                      // 0 = ssh's own default
  bool check = true;                     // try ssh on every host first
  std::vector<std::string> exports{};    // names of further variables to pass to other hosts
  std::string venv_script{};             // sourced on the other hosts first
  std::string interface {};              // the network interface that ranks use
};

// Restarts of a failed job.
struct RestartRequest {
  int max_restarts = 0;
  int min_nodes = 0;  // --min_elastic_nodes, --max_elastic_nodes; 0 = not given
  int max_nodes = 0;
};

// Where the output of ranks goes. Streams are given as in torchrun: "3" or, by local rank,
// "0:1,2:3", where 1 is stdout, 2 stderr and 3 both.
struct OutputRequest {
  std::string log_dir{};
  std::string redirects{};         // streams that go to files only
  std::string tee{};               // streams that go to files and the terminal
  std::vector<int> shown_ranks{};  // only these local ranks print; empty = all
  bool quiet = false;              // the launcher prints only errors and warnings
};

// The CPUs that ranks are bound to.
struct CpuRequest {
  bool bind = true;
  std::string list{};  // CPUs to divide among the ranks, as 0-3,8; empty = all
};

// The command line `zerorun [options] PROGRAM [arguments]`.
struct LaunchOptions {
  RankRequest request;
  HostRequest hosts;
  RemoteRequest remote;
  RestartRequest restarts;
  OutputRequest output;
  ProgramRequest program;
  std::chrono::milliseconds grace_period{30000};
  CpuRequest cpus;
  std::vector<std::string> notes;  // on options that have no effect here
  bool deepspeed_compat = false;
  bool save_pid = false;  // write /tmp/PID.deepspeed, like DeepSpeed's launcher
  bool dry_run = false;
  bool help = false;
  bool version = false;
};

// Parses a command line. `arguments`: without the launcher's own name. Options come before PROGRAM;
// what follows it is not parsed. Throws ConfigError, which suggests the nearest name for an unknown
// option and says if an option of another launcher is not supported. `environment`: torchrun's
// variables PET_*, each of which sets the option of its name unless the command line does.
LaunchOptions parse_options(const std::vector<std::string>& arguments,
                            const Environment& environment = {});

// The text of --help. `tools`: the text about commands, between options and examples.
std::string help_text(const std::string& tools);

// The values of options whose text is checked after parsing.
struct RawOptions {
  double grace_seconds = 30;
  std::string launcher_arguments{};
  std::string rdzv_conf{};
  std::string shown_ranks{};
  std::string signals{};
  std::string log_level{};
  bool elastic = false;
};

// Defines the launcher's options in the groups that its help shows: zerorun's own options, those of
// DeepSpeed's launcher and those of torchrun.
void define_options(CLI::App& app, LaunchOptions& options, RawOptions& raw);

// Advice for an option of another launcher that zerorun cannot support; empty for other names.
std::string_view advice_on_foreign(std::string_view name);

// Runs a job on this host or on several. `arguments`: the command line from which `options` were
// parsed. Forks (see run_guarded in launcher/ranks/process.h) and returns the job's exit code in
// both processes; the caller has to exit with it. Throws ConfigError and CommError.
int launch(const std::vector<std::string>& arguments, const LaunchOptions& options);

}  // namespace zerorun
