#pragma once

#include <sys/types.h>

#include <csignal>
#include <optional>
#include <vector>

#include "launcher/job.h"
#include "launcher/ranks/output.h"

namespace zerorun {

// A rank of this host as its supervisor sees it.
struct RankProcess {
  pid_t pid = -1;
  std::optional<int> status{};  // as waitpid gives it, once it has ended
  std::vector<RankStream> streams{};
  bool stopped = false;  // by somebody else than the launcher
};

// The outputs and descriptors that all ranks of this host share.
struct RankSurroundings {
  OutputQueue& output;
  OutputQueue& errors;
  const FileDescriptor& null_device;
  const sigset_t& signal_mask;
  const FileDescriptor& failure;  // see spawn()
};

// Starts rank `number` of this host, from 0. Throws ConfigError when a log file cannot be opened.
RankProcess start_rank(const Job& job, int number, const RankSurroundings& surroundings);

}  // namespace zerorun
