#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group_options.h"
#include "comm/shm/layout.h"
#include "comm/shm/segment.h"
#include "comm/stall_report.h"
#include "comm/waiting.h"

namespace zerorun::shm {

// Keeps the ranks of one host in step, and tells all of them when one failed, left or died. Every
// wait ends: by the peers, by a failure, or at the deadline.
class Control {
 public:
  // Meets the peers through the store. `local` is null unless the ranks are threads of one process.
  Control(GroupOptions options, LocalSegments* local);

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  // The functions of this group are called by one thread at a time.
  //
  // Announces this rank's operation with the coming step. Fills in the sequence number.
  void announce(Announcement announcement, std::string_view label);
  // Counts a step and waits for the peers to do the same. Throws CommError.
  void advance();
  // Throws CommError, on every rank, unless all announced the same.
  void check_agreement();
  // The peer's announcement for the step just taken.
  Announcement announcement(int peer) const;
  // This rank's memory for the coming step, and a peer's of the step just taken; kStageBytes each.
  std::byte* outbox() const { return stage(rank_, step_ + 1); }
  const std::byte* inbox(int peer) const { return stage(peer, step_); }
  // Tell peers and reports of a wait outside of this class; `rank` is this rank's number in the
  // job.
  void begin_wait(int rank);
  void end_wait();

  // The functions of this group may be called by any thread.
  //
  // Throws the error of an earlier failure, if there was one.
  void check();
  // Makes `text` the error of every rank, unless there was one before; throws it.
  [[noreturn]] void fail(const std::string& text);
  // The same without throwing.
  void set_error(std::string_view text) noexcept;
  // The error of an earlier failure; empty: there was none.
  std::string error() const;
  // The same without throwing; `reason` is what the user says.
  void abort(std::string_view reason) noexcept;
  // This rank takes no more steps: its own waits and those of its peers end.
  void leave() noexcept;
  // "rank 1 (pid 123 on host a)"
  std::string name_of_rank(int peer) const;

  // The functions of this group are for a wait that was too long.
  //
  // `report` is called on one of the ranks, before the wait's error ends the job. Unless it is set,
  // the report is of this host's ranks.
  void on_stall(std::function<void(const std::string& reason)> report) {
    report_ = std::move(report);
  }
  // True for the first rank that asks: it has to report.
  bool claim_report() { return header().stall_reported.exchange(1) == 0; }
  // Ranks that find a report claimed wait so much longer for it.
  static constexpr std::chrono::seconds kReportTime{15};
  // The current activity of each rank of this host. May be called by any thread; takes a second or
  // two.
  std::vector<RankActivity> activities() const;
  // The rank, as the job numbers it, that a rank of this host waits for.
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
  const int stride_;      // between the peers that it waits for one after the other
  GroupOptions options_;  // the store: until the ranks have met
  const ProcessIdentity process_;
  std::shared_ptr<Segment> segment_;
  std::function<void(const std::string&)> report_;
  // These belong to the thread that takes steps.
  uint32_t step_ = 0;
  int looked_ = 0;  // the peer at which the next look at some of them begins
  uint64_t sequence_ = 0;
  Announcement current_;
  // These may be used by any thread.
  std::atomic<bool> left_ = false;
  std::mutex mutex_;
  std::string error_;  // guarded by mutex_; empty: none
};

}  // namespace zerorun::shm
