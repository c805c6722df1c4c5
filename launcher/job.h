#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "launcher/environment.h"
#include "launcher/hosts/cluster.h"
#include "launcher/options.h"
#include "launcher/program.h"
#include "launcher/ranks/output.h"
#include "launcher/ranks/resources.h"
#include "os/socket.h"

namespace zerorun {

// How one rank of this host will be started.

struct RankPlan {
  std::vector<std::string> command;
  Environment variables;  // override the inherited environment
  std::vector<int> cpus;  // CPUs to bind to; empty = not bound
  RankStreams streams;
  std::string error_file;  // where PyTorch's @record writes an exception
};

// The address at which the ranks of a job meet, and the secret that proves that a rank belongs to
// the job. The launcher of the first host decides both and tells the other launchers.
struct Meeting {
  std::string master_addr{};  // empty: this launcher decides
  uint16_t master_port = 0;
  std::string secret{};
  std::string run_id{};
  int restarts = 0;              // of this job so far
  std::string restart_reason{};  // of the last one
};

// The settings that all ranks of a job on one host share.
struct JobSettings {
  Cluster cluster;
  Meeting meeting;
  std::string role = "default";   // torchrun's name for these ranks
  int store_fd = -1;              // the socket that reserves the port, for rank 0
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

struct Job {
  Cluster cluster;
  Meeting meeting;
  std::vector<RankPlan> ranks;  // of this host; the first is rank cluster.first_rank()
  Environment inherited;
  std::string host;
  std::string note;          // one line for the user, or empty
  std::string log_dir;       // empty = none
  std::string no_package;    // why the ranks' Python cannot import zerorun; empty if it can
  std::string error_folder;  // of the ranks' error files; not made yet
  // The socket that reserves MASTER_PORT; rank 0 inherits it. Null except on the first host.
  std::shared_ptr<FileDescriptor> rendezvous;
  // The time between a request to end and SIGKILL.
  std::chrono::milliseconds grace_period{30000};
};

// Plans this host's part of a job. All hosts of `cluster` have slots. On hosts other than the
// first, `meeting` has the address. Throws ConfigError.
Job plan_job(const LaunchOptions& options, const ThisHost& here, const Cluster& cluster,
             const Meeting& meeting);

// The text of --dry_run: for each rank its variables, CPUs and command.
std::string describe_job(const Job& job);

// Reserves the port on which rank 0 will listen: `port`, or a free one for 0. The launcher passes
// the socket to rank 0, so no other program can take the port meanwhile. The socket is bound to
// loopback, because all ranks run on this host. `host` has to be an address of this machine,
// because PyTorch uses it. Throws ConfigError if it is not, or if the port is in use.
Listener reserve_master_port(const std::string& host, uint16_t port);

// The same for a job of several hosts. The socket is bound to all interfaces, for ranks of other
// hosts; the job's secret authenticates them.
Listener reserve_open_port(uint16_t port);

}  // namespace zerorun
