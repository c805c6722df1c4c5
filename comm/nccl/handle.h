#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>

#include "comm/nccl/library.h"

namespace zerorun {

// NCCL's handle of a communicator, which a thread may take away to end the communicator while
// others call functions with it. NCCL frees its memory then, so calls that have begun return first.
class NcclHandle {
 public:
  void set(ncclComm_t comm);
  // Returns nothing, having done nothing, when the handle has been taken away.
  using Function = std::function<ncclResult_t(ncclComm_t)>;
  std::optional<ncclResult_t> call(const Function& function);
  // Takes the handle away and returns it once all calls that have begun with it have returned. A
  // call that has not returned kPatience after it began waits for peers within NCCL, and only
  // ncclCommAbort ends it. Returns null when there is no handle any more.
  ncclComm_t take();
  // Takes the handle away and has `abort` end the communicator, then its successor.
  void end(const Function& abort);
  // Returns when an end() that has begun is over: until then NCCL uses what is registered with it.
  void wait_for_end();

  // Where ncclCommSplit stores the handle of a communicator that succeeds this one. A thread of
  // NCCL's does so when the split is over, even after an error, or while ncclCommAbort waits for
  // that thread: the place must outlive both.
  ncclComm_t* successor() { return &successor_; }
  // Makes the successor, whose split is over, the communicator, and returns the one before as
  // take() does. Returns null when the handle has been taken away, or NCCL has stored none.
  ncclComm_t succeed();

 private:
  using Clock = std::chrono::steady_clock;
  // Calls that do not wait for peers take microseconds.
  static constexpr std::chrono::seconds kPatience{1};

  ncclComm_t exchange(std::unique_lock<std::mutex>& lock, ncclComm_t next);

  std::mutex mutex_;                  // never held during a call
  std::condition_variable returned_;  // also from end()
  bool ending_ = false;
  ncclComm_t comm_ = nullptr;
  ncclComm_t successor_ = nullptr;
  int calls_ = 0;
  Clock::time_point begun_{};  // the last call
};

}  // namespace zerorun
