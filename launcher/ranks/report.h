#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace zerorun {

// An exception that a rank has left in its TORCHELASTIC_ERROR_FILE, as PyTorch's @record does.
struct ErrorRecord {
  std::string message;    // "ValueError: no such thing", one line
  std::string traceback;  // or empty
};

// nullopt if the file does not exist or was not written by @record.
std::optional<ErrorRecord> read_error_record(const std::string& path);

// A rank that was stopped (SIGSTOP), so that its peers waited for it.
struct StoppedRank {
  int rank = 0;
  pid_t pid = 0;
};

// How a rank failed, and facts about the likely cause.
struct RankFailure {
  int rank = 0;
  int ranks = 1;
  pid_t pid = 0;
  std::string host;
  int status = 0;                         // from waitpid
  std::vector<std::string> last_lines;    // of its output
  bool lines_in_view = false;             // they are the last lines printed
  bool oom_kill = false;                  // the kernel ended a process for lack of memory meanwhile
  std::optional<uint64_t> shm_available;  // bytes, in /dev/shm
  std::optional<ErrorRecord> exception;
  std::string no_package;            // why its Python cannot import zerorun; empty if it can
  std::vector<StoppedRank> stopped;  // ranks of this host that were stopped when it failed
};

// The exit code of a process; 128 + signal if a signal ended it.
int exit_code_of(int wait_status);

// The likely cause in one line; empty if there is nothing to add to the rank's own output.
std::string likely_cause(const RankFailure& failure);

// "rank 1 on host-b failed with exit code 3".
std::string summarize_failure(const RankFailure& failure);

// The last lines of the job's output: the rank's last lines unless they were just printed, how it
// ended, and the likely cause.
std::string describe_failure(const RankFailure& failure);

// Chooses a unique path below TMPDIR; empty if that is none.
std::string choose_temporary_path();
// Creates the folder for the exceptions that Python programs leave for the failure report:
// PyTorch's @record writes them to the file that TORCHELASTIC_ERROR_FILE names. The folder goes
// with the result. Null if it cannot be created (a full disk): then there are no error files.
std::shared_ptr<void> make_error_folder(const std::string& path);

}  // namespace zerorun
