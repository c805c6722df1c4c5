#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group_options.h"
#include "comm/shm/layout.h"
#include "comm/shm/segment.h"
#include "comm/stall_report.h"
#include "comm/waiting.h"

namespace zerorun::shm {

// Synchronises the ranks of one host through a shared control segment (comm/shm/layout.h). Informs
// all of them if one failed, left or died. Every wait ends: by the peers, by a failure, or at the
// deadline.
class Control {
 public:
  // Joins the peers through the store. `local`: null unless the ranks are threads of one process.
  Control(GroupOptions options, LocalSegments* local);

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  // The functions of this group must be called by one thread at a time.
  //
  // Publishes this rank's operation for the coming step. Sets its sequence number.
  void announce(Announcement announcement, std::string_view label);
  // Completes a step and waits until all peers have completed it. Throws CommError.
  void advance();
  // Throws CommError on every rank unless all announced the same operation.
  void check_agreement();
  // Throws CommError if the job has an error, or if a peer has left or died. For a wait outside of
  // steps that every peer has to end; `what` names it. Called often, because a call looks at the
  // processes of some peers only.
  void check_peers(std::string_view what);
  // The peer's announcement for the last step.
  Announcement announcement(int peer) const;
  // This rank's staging memory for the coming step, and a peer's for the last step; kStageBytes
  // each.
  std::byte* outbox() const { return stage(rank_, step_ + 1); }
  const std::byte* inbox(int peer) const { return stage(peer, step_); }
  // Mark a wait outside of this class, so that peers and reports can name it. `rank`: the rank
  // waited for, as the job numbers it.
  void begin_wait(int rank);
  void end_wait();

  // The functions of this group may be called by any thread.
  //
  // Throws the error of an earlier failure, if there was one.
  void check();
  // Makes `text` the error of every rank, unless they already have one, and throws the error.
  [[noreturn]] void fail(const std::string& text);
  // The same without throwing.
  void set_error(std::string_view text) noexcept;
  // The error of an earlier failure; empty: none.
  std::string error() const;
  // As set_error(); `reason` is the caller's reason for aborting.
  void abort(std::string_view reason) noexcept;
  // Announces that this rank takes no more steps. Its own waits and those of its peers end.
  void leave() noexcept;
  // "rank 1 (pid 123 on host a)"
  std::string name_of_rank(int peer) const;

  // The functions of this group are for waits that reach the deadline.
  //
  // `report` is called on one of the ranks before the wait's error ends the job. If none is set,
  // the report covers this host's ranks.
  void on_stall(std::function<void(const std::string& reason)> report) {
    report_ = std::move(report);
  }
  // True for the first rank that calls it; that rank has to report.
  bool claim_report() { return header().stall_reported.exchange(1) == 0; }
  // How long the other ranks wait for the report of the one that claimed it.
  static constexpr std::chrono::seconds kReportTime{15};
  // What each rank of this host is doing. Any thread may call it; it takes one or two seconds.
  std::vector<RankActivity> activities() const;
  // The rank that `peer`, a rank of this host, waits for, as the job numbers it.
  std::optional<int> waits_for(int peer) const;
  // How long this rank has been waiting.
  std::chrono::steady_clock::duration waited() const;

 private:
  using Clock = std::chrono::steady_clock;

  int number(int peer) const { return options_.number(peer); }
  RankSlot& slot(int peer) const;
  std::byte* stage(int peer, uint32_t step) const;
  ControlHeader& header() const;
  Failure& failure() const;
  bool arrived(int peer) const;
  bool all_arrived() const;
  void claim_slot();
  void wait_for(int peer);
  bool spin_for(int peer) const;
  bool has_left(int peer) const;
  // True if the peer's process was found to have ended. A call looks at some peers only.
  bool has_died(int peer) const;
  [[noreturn]] void fail_without(int peer, std::string_view what);
  void examine_peers(Clock::time_point started, WaitingNotice& notice);
  void end_late_wait(Clock::duration waited, const std::string& text);
  RankActivity activity(int peer) const;
  Announcement last_announcement(int peer) const;
  void wake_all() const noexcept;
  std::string last_operation(int peer) const;
  std::string keep_error(std::string_view text);
  void record_failure(std::string_view text) noexcept;

  // Constant after construction.
  const int rank_;
  const int world_size_;
  const int stride_;      // distance between the peers that it waits for one after the other
  GroupOptions options_;  // the store is dropped when the ranks have met
  const ProcessIdentity process_;
  std::shared_ptr<Segment> segment_;
  std::function<void(const std::string&)> report_;
  // These belong to the thread that takes steps.
  uint32_t step_ = 0;
  int looked_ = 0;  // the peer at which the next check of some peers begins
  uint64_t sequence_ = 0;
  Announcement current_;
  // These may be used by any thread.
  std::atomic<bool> left_ = false;
};

}  // namespace zerorun::shm
