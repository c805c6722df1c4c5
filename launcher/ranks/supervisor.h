#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/control/control_connection.h"
#include "launcher/job.h"
#include "launcher/ranks/error_folder.h"
#include "launcher/ranks/output.h"
#include "launcher/ranks/rank_process.h"
#include "launcher/ranks/report.h"
#include "os/cgroup.h"

namespace zerorun {

// How the ranks of one host ended.
struct RunEnd {
  enum class Cause : uint8_t {
    success,
    failure,    // a rank of this host failed
    request,    // a signal ended it
    elsewhere,  // the coordinator ended it, because a rank failed on another host
    orphaned,   // the guardian or the coordinator is gone
  };
  Cause cause = Cause::success;
  int code = 0;            // the first failing rank's, or 128 + signal
  bool by_signal = false;  // a signal ended the failing rank
  std::string report{};    // the last lines of the job's output
  std::string summary{};   // the failure in a few words
};

// Runs the ranks of one host: starts them, prints their output, passes the user's signals to them,
// and ends all of them if one fails, on request, or if the guardian dies. It is one thread with one
// poll() loop; everything it waits for, including signals, is a file descriptor. Its process must
// be a subreaper and have supervised_signals() blocked.
class Supervisor {
 public:
  // `guardian`: a descriptor that reads end-of-file when the guardian has died. `coordinator`: the
  // connection to it in a job of several hosts, else null. All references have to outlive the
  // supervisor. Throws ConfigError if a log file cannot be opened.
  Supervisor(Job job, const FileDescriptor& guardian, const sigset_t& rank_signal_mask,
             OutputQueues& output, ControlConnection* coordinator = nullptr);

  // Runs until no process of the job is left. Some output may then still be in its queue, if the
  // reader is slow. Throws ConfigError if the program cannot be executed.
  RunEnd run();

 private:
  // Who asks for an end of the job. One request may arrive on several ways, so that only a second
  // one of the same asker kills at once.
  enum class Asker { here, coordinator, other_host };

  using Clock = std::chrono::steady_clock;

  // running -> stopping (asked to) or failing (a rank failed) -> killing -> abandoned (ranks that
  // not even SIGKILL ends: a hung driver or file system)
  enum class Phase : uint8_t { running, stopping, failing, killing, abandoned };

  void start_ranks();
  void check_started(const FileDescriptor& failure);

  void wait_and_handle();
  int milliseconds_to_deadline() const;
  void handle_deadline();
  void handle_signals();
  void handle_signal(int signal, Asker asker);
  void handle_coordinator();
  void reap();
  void note_state(RankProcess& rank, int status);
  // Decides how ranks that ended at the same time affect the job.
  void judge_ends(const std::vector<int>& ended);
  bool ended_by_request(const RankProcess& rank) const;
  void fail_job(int rank);
  // Asks all ranks to end and gives them a moment.
  void end_job();
  void stop_job(int signal, Asker asker);
  void kill_job();
  // Sends a signal to each running rank: to its process group, or to the rank only.
  enum class Reach : uint8_t { group, rank };
  void signal_ranks(int signal, Reach reach);

  bool any_running() const;
  // After success, waits a moment for processes that the ranks have left behind.
  void wait_for_leftovers();
  RunEnd conclude();
  RankFailure describe_failed_rank() const;

  Job job_;
  ErrorFolder error_folder_;
  sigset_t rank_signal_mask_;
  int guardian_;  // -1 once it is dead
  ControlConnection* coordinator_;
  FileDescriptor signals_;
  OutputQueues& output_;
  std::vector<RankProcess> ranks_;
  Phase phase_ = Phase::running;
  std::optional<Clock::time_point> deadline_;  // of the present phase
  // Why the ranks of this host ended.
  struct Fate {
    std::optional<int> stop_signal;  // the signal that asked for it
    std::optional<int> failed_rank;  // local rank of the first one that failed
    bool elsewhere = false;          // the coordinator asked for it
    std::set<Asker> asked;           // who asked for an end
  } fate_;
  bool suspended_ = false;  // suspended by the user, with Ctrl-Z
  ControlGroup cgroup_;
  std::optional<int64_t> oom_kills_before_;
};

}  // namespace zerorun
