#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "launcher/environment.h"
#include "launcher/options.h"
#include "launcher/program.h"
#include "os/file_descriptor.h"

namespace zerorun {

// A job ready to be started: everything decided, nothing running.

struct RankPlan {
  std::vector<std::string> command;
  Environment variables;  // on top of the inherited environment
  std::vector<int> cpus;  // to bind to; empty = not bound
};

struct Job {
  std::vector<RankPlan> ranks;
  Environment inherited;
  std::string host;
  std::string note;     // one line for the user, or empty
  std::string log_dir;  // empty = none
  // The socket that holds MASTER_PORT; rank 0 inherits it.
  std::shared_ptr<FileDescriptor> rendezvous;
  // The time between a request to end and SIGKILL.
  std::chrono::milliseconds grace_period{30000};
};

// Looks at this machine and decides. Throws ConfigError.
Job plan_job(const LaunchOptions& options);

// The text of --dry_run: per rank the variables that are set, the CPUs and the command.
std::string describe_job(const Job& job);

}  // namespace zerorun
