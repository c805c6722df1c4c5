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
#include "launcher/ranks/output.h"
#include "launcher/ranks/report.h"
#include "os/host_limits.h"

namespace zerorun {

// The supervisor's record of a rank of this host.
struct RankProcess {
  pid_t pid = -1;
  std::optional<int> status{};  // from waitpid, after it has ended
  std::vector<RankStream> streams{};
  bool stopped = false;  // stopped (SIGSTOP), but not by the launcher
};

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
  // one of the same requester kills at once.
  enum class Requester { here, coordinator, other_host };

  using Clock = std::chrono::steady_clock;

  // abandoned: not even SIGKILL ends the ranks (a hung driver or file system).
  enum class Phase : uint8_t { running, stopping, failing, killing, abandoned };
  enum class Event : uint8_t {
    stop_requested,
    interrupted_again,  // a second Ctrl-C of the same requester
    rank_failed,
    failed_elsewhere,  // the coordinator says so
    overdue,           // the phase's deadline is over
    orphaned,          // the guardian or the coordinator is gone
  };
  // The phase that follows; the same one where an event changes nothing.
  static constexpr Phase kNextPhase[5][6] = {
      // stop_requested, interrupted_again, rank_failed, failed_elsewhere, overdue, orphaned
      {Phase::stopping, Phase::running, Phase::failing, Phase::failing, Phase::running,
       Phase::killing},
      {Phase::stopping, Phase::killing, Phase::stopping, Phase::failing, Phase::killing,
       Phase::killing},
      {Phase::failing, Phase::failing, Phase::failing, Phase::failing, Phase::killing,
       Phase::killing},
      {Phase::killing, Phase::killing, Phase::killing, Phase::killing, Phase::abandoned,
       Phase::killing},
      {Phase::abandoned, Phase::abandoned, Phase::abandoned, Phase::abandoned, Phase::abandoned,
       Phase::abandoned},
  };

  // Throws ConfigError if a log file cannot be opened, or the program not executed.
  void start_ranks();
  void start_rank(int number, const FileDescriptor& null_device);

  void wait_and_handle();
  std::chrono::milliseconds time_to_wait() const;
  // Enters the phase that follows and does what it begins with. False if it stays the same.
  bool handle(Event event);
  void handle_signal(int signal, Requester requester);
  void handle_coordinator();
  void reap();
  void note_state(RankProcess& rank, int status);
  // Decides how ranks that ended at the same time affect the job.
  void judge_ends(const std::vector<int>& ended);
  bool ended_by_request(const RankProcess& rank) const;
  void stop_job(int signal, Requester requester);
  // Sends a signal to each running rank: to its process group, or to the rank only.
  enum class Reach : uint8_t { group, rank };
  void signal_ranks(int signal, Reach reach);

  bool any_running() const;
  // After success, waits a moment for processes that the ranks have left behind.
  void wait_for_leftovers();
  RunEnd conclude();
  RankFailure describe_failed_rank() const;

  Job job_;
  std::shared_ptr<void> error_folder_;
  sigset_t rank_signal_mask_;
  int guardian_;  // -1 once it is dead
  ControlConnection* coordinator_;
  FileDescriptor signals_;
  OutputQueues& output_;
  std::vector<RankProcess> ranks_;
  Phase phase_ = Phase::running;
  std::optional<Clock::time_point> deadline_;  // of the present phase
  // Why the ranks of this host ended.
  struct Outcome {
    std::optional<int> stop_signal;  // the signal that asked for it
    std::optional<int> failed_rank;  // local rank of the first one that failed
    bool elsewhere = false;          // the coordinator asked for it
    std::set<Requester> requesters;
  } outcome_;
  bool suspended_ = false;  // suspended by the user, with Ctrl-Z
  ControlGroup cgroup_;
  std::optional<int64_t> oom_kills_before_;
};

}  // namespace zerorun
