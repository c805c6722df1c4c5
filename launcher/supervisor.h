#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "launcher/job.h"
#include "launcher/output.h"
#include "launcher/process.h"
#include "os/cgroup.h"

namespace zerorun {

// Starts the ranks of a job, passes their output and the user's signals on, and ends all of them
// when one fails, when asked to, or when the guardian dies. One thread, one poll() loop; everything
// it waits for (signals included) is a file descriptor. Its process must be a subreaper and have
// supervised_signals() blocked.
class Supervisor {
 public:
  // `guardian` reads end-of-file when the guardian is dead. Throws ConfigError when a log file
  // cannot be opened.
  Supervisor(Job job, FileDescriptor guardian, const sigset_t& rank_signal_mask);

  // Until no process of the job is left. Returns the job's exit code: that of the first rank that
  // failed, 128 + signal if it was asked to stop. Throws ConfigError if the program cannot be
  // executed.
  int run();

 private:
  using Clock = std::chrono::steady_clock;

  struct Rank {
    pid_t pid = -1;
    std::optional<int> status;  // as waitpid gives it, once it has ended
    std::vector<RankStream> streams;
  };
  // running -> stopping (asked to) or failing (a rank failed) -> killing -> abandoned (ranks that
  // not even SIGKILL ends: a hung driver or file system)
  enum class Phase : uint8_t { running, stopping, failing, killing, abandoned };

  void start_ranks();
  void start_rank(int number, const FileDescriptor& failure, const FileDescriptor& null_device);
  // The supervisor's end of a new pipe goes to `rank`; returns the rank's end.
  FileDescriptor add_stream(Rank& rank, OutputRoute route);
  void check_started(const FileDescriptor& failure);

  void wait_and_handle();
  int milliseconds_to_deadline() const;
  void handle_deadline();
  void handle_signals();
  void reap();
  // Decides what the ranks that ended together mean for the job.
  void judge_ends(const std::vector<int>& ended);
  bool ended_by_request(const Rank& rank) const;
  void fail_job(int rank);
  void stop_job(int signal);
  void kill_job();
  // To each rank that runs: its whole process group, or itself only.
  enum class Reach : uint8_t { group, rank };
  void signal_ranks(int signal, Reach reach);

  bool any_running() const;
  void finish_output();
  int conclude();

  Job job_;
  sigset_t rank_signal_mask_;
  FileDescriptor guardian_;
  FileDescriptor signals_;
  OutputQueue stdout_;
  OutputQueue stderr_;
  std::vector<Rank> ranks_;
  Phase phase_ = Phase::running;
  std::optional<Clock::time_point> deadline_;  // of the present phase
  std::optional<int> stop_signal_;
  std::optional<int> failed_rank_;
  ControlGroup cgroup_;
  std::optional<int64_t> oom_kills_before_;
};

}  // namespace zerorun
