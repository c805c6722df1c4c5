#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/ranks/error_record.h"

namespace zerorun {

// A rank that somebody has stopped (SIGSTOP), so that its peers waited for it.
struct StoppedRank {
  int rank = 0;
  pid_t pid = 0;
};

// How a rank failed, and why it probably did.
struct RankFailure {
  int rank = 0;
  int ranks = 1;
  pid_t pid = 0;
  std::string host;
  int status = 0;                         // as waitpid gives it
  std::vector<std::string> last_lines;    // of its output
  bool lines_in_view = false;             // and nothing after them
  bool oom_kill = false;                  // the kernel ended a process for lack of memory meanwhile
  std::optional<uint64_t> shm_available;  // bytes, in /dev/shm
  std::optional<ErrorRecord> exception;
  std::vector<StoppedRank> stopped;  // ranks of this host that did not run when it failed
};

// 128 + signal for a process that a signal has ended.
int exit_code_of(int wait_status);

// One line, or empty when there is nothing to add to what the rank said.
std::string likely_cause(const RankFailure& failure);

// "rank 1 on host-b failed with exit code 3".
std::string summarize_failure(const RankFailure& failure);

// The lines that end the job's output: the rank's last ones unless they stand above already, how it
// ended, the likely cause.
std::string describe_failure(const RankFailure& failure);

}  // namespace zerorun
