#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "launcher/environment.h"
#include "launcher/hosts/cluster.h"
#include "launcher/hosts/this_host.h"
#include "launcher/options.h"
#include "launcher/program.h"
#include "launcher/ranks/stream_plan.h"
#include "os/file_descriptor.h"

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

}  // namespace zerorun
