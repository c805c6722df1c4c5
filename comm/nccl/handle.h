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
  // Replaces the handle, or takes it away (null), and returns it once all calls that have begun
  // with it have returned. A call that has not returned kPatience after it began waits for peers
  // within NCCL, and only ncclCommAbort ends it. Returns null when there is no handle any more.
  ncclComm_t exchange(ncclComm_t next);

 private:
  using Clock = std::chrono::steady_clock;
  // Calls that do not wait for peers take microseconds.
  static constexpr std::chrono::seconds kPatience{1};

  std::mutex mutex_;  // never held during a call
  std::condition_variable returned_;
  ncclComm_t comm_ = nullptr;
  int calls_ = 0;
  Clock::time_point begun_{};  // the last call
};

}  // namespace zerorun
