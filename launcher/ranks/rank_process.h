#pragma once

#include <sys/types.h>

#include <csignal>
#include <optional>
#include <vector>

#include "launcher/job.h"
#include "launcher/ranks/output.h"

namespace zerorun {

// The supervisor's record of a rank of this host.
struct RankProcess {
  pid_t pid = -1;
  std::optional<int> status{};  // from waitpid, after it has ended
  std::vector<RankStream> streams{};
  bool stopped = false;  // stopped (SIGSTOP), but not by the launcher
};

// The outputs and descriptors that all ranks of this host share.
struct RankSurroundings {
  OutputQueue& output;
  OutputQueue& errors;
  const FileDescriptor& null_device;
  const sigset_t& signal_mask;
  const FileDescriptor& failure;  // see spawn()
};

// Starts the rank with local rank `number`. Throws ConfigError if a log file cannot be opened.
RankProcess start_rank(const Job& job, int number, const RankSurroundings& surroundings);

}  // namespace zerorun
