#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/shm/layout.h"
#include "comm/shm/segment.h"
#include "comm/waiting.h"
#include "zerorun/communicator.h"

namespace zerorun::shm {

// Keeps the ranks of one host in step, and tells all of them when one failed, left or died. Every
// wait ends: by the peers, by a failure, or at the deadline.
class Control {
 public:
  // Meets the peers through the store. `local` is null unless the ranks are threads of one process.
  // `numbers`: what messages call the ranks, in a job of several hosts; empty: 0, 1, ...
  Control(const CommunicatorOptions& options, LocalSegments* local, std::vector<int> numbers = {});

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
  std::byte* outbox() const { return slot(rank_).stages[(step_ + 1) % 2].data(); }
  const std::byte* inbox(int peer) const { return slot(peer).stages[step_ % 2].data(); }

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

 private:
  using Clock = std::chrono::steady_clock;

  int number(int peer) const {
    return numbers_.empty() ? peer : numbers_[static_cast<size_t>(peer)];
  }
  RankSlot& slot(int peer) const;
  ControlHeader& header() const;
  Failure& failure() const;
  bool arrived(int peer) const;
  bool all_arrived() const;
  void claim_slot();
  void wait_for(int peer);
  bool spin_for(int peer) const;
  void examine_peers(Clock::time_point started, WaitingNotice& notice);
  void wake_all() const noexcept;
  std::string last_operation(int peer) const;
  std::string keep_error(std::string_view text);
  void record_failure(std::string_view text) noexcept;

  // Constant after construction.
  const int rank_;
  const int world_size_;
  const std::chrono::milliseconds timeout_;
  const std::vector<int> numbers_;
  const ProcessIdentity process_;
  std::shared_ptr<Segment> segment_;
  // These belong to the thread that takes steps.
  uint32_t step_ = 0;
  uint64_t sequence_ = 0;
  Announcement current_;
  // These may be used by any thread.
  std::atomic<bool> left_ = false;
  std::mutex mutex_;
  std::string error_;  // guarded by mutex_; empty: none
};

}  // namespace zerorun::shm
