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

// Finds out through the store why a rank of an NCCL communicator has waited until the deadline.
// That rank asks the others. The watcher thread of each rank answers with what its rank is doing,
// even if the rank itself hangs. Rank 0 prints one report, whose text becomes the error of all
// ranks.
class NcclStall {
 public:
  // The arguments must outlive this object.
  NcclStall(const GroupOptions& options, NcclPeers& peers);

  // Records that this rank begins a call. Any thread may call it. Only the watcher thread calls the
  // functions below.
  void begin(const std::string& call);
  // Prints on stderr, on one rank, that the last call waits for long.
  void tell(double waited_s);
  // Checks once a second whether a peer asks, and answers. Returns the error of all ranks if rank 0
  // has just reported, else an empty string. `waited_s`: how long this rank has waited in its last
  // call.
  std::string answer(std::optional<double> waited_s);
  // Asks the other ranks, because this rank has waited until the deadline. Returns the error for
  // this rank.
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
  // The last call that began. Guarded by mutex_, like the next two.
  std::string last_ = "none";
  int64_t begun_ = 0;  // calls that began
  WaitingNotice notice_;
};

}  // namespace zerorun
