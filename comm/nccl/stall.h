#pragma once

#include <chrono>
#include <functional>
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
  // `options` and `peers` must outlive this object. `last_call` names the last call that this rank
  // began.
  NcclStall(const GroupOptions& options, NcclPeers& peers, std::function<std::string()> last_call);

  // Records that this rank begins a call. Any thread may call it. Only the watcher thread calls the
  // functions below.
  void begin();
  // Prints on stderr, on one rank, that the last call waits for long.
  void warn(double waited_s);
  // Checks once a second whether a peer asks, and answers. Returns the error of all ranks if rank 0
  // has just reported, else an empty string. `waited_s`: how long this rank has waited in its last
  // call.
  std::string answer(std::optional<double> waited_s);
  // Asks the other ranks, because this rank has waited until the deadline. Returns the error for
  // this rank.
  std::string ask(const std::string& reason, std::optional<double> waited_s);

 private:
  using Clock = std::chrono::steady_clock;

  void publish_activity(std::optional<double> waited_s);
  std::string write_report(const std::string& reason, std::chrono::milliseconds patience);
  RankActivity activity_of(int rank, Clock::time_point until) const;

  const GroupOptions& options_;
  NcclPeers& peers_;
  const std::function<std::string()> last_call_;
  bool published_ = false;
  Clock::time_point asked_at_{};
  std::mutex mutex_;
  // Calls that began. Guarded by mutex_, like the next.
  int64_t begun_ = 0;
  WaitingNotice notice_;
};

}  // namespace zerorun
