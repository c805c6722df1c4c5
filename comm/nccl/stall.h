#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <string>

#include "comm/group_options.h"
#include "comm/nccl/peers.h"
#include "comm/stall_report.h"
#include "comm/waiting.h"

namespace zerorun {

// Finds out, through the store, why a rank of an NCCL communicator waited too long. That rank asks
// the others. The watcher thread of each answers with what its rank is doing, even when that rank
// hangs. Rank 0 prints one report, whose text is the error of all ranks.
class NcclStall {
 public:
  // The arguments must outlive this.
  NcclStall(const GroupOptions& options, NcclPeers& peers);

  // This rank begins a call. By any thread; the functions below are the watcher's.
  void begin(const std::string& call);
  // Says on stderr, on one rank, that the wait in the last call is long.
  void tell(double waited_s);
  // Answers if a peer asks, which it looks for once a second. Returns the error of all, if rank 0
  // has just reported; else nothing. `waited_s`: how long this rank waits in its last call.
  std::string answer(std::optional<double> waited_s);
  // This rank has waited too long; returns the error that it ends with.
  std::string ask(const std::string& reason, std::optional<double> waited_s);

 private:
  using Clock = std::chrono::steady_clock;

  void hand_in(std::optional<double> waited_s);
  std::string write_report(const std::string& reason, std::chrono::milliseconds patience);
  RankActivity activity_of(int rank, Clock::time_point until) const;

  const GroupOptions& options_;
  NcclPeers& peers_;
  bool handed_in_ = false;
  Clock::time_point looked_{};
  std::mutex mutex_;
  // The call that began last. Guarded by mutex_, like the next.
  std::string last_ = "none";
  int64_t begun_ = 0;  // calls
  WaitingNotice notice_;
};

}  // namespace zerorun
