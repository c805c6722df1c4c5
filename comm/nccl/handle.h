#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "comm/nccl/library.h"
#include "comm/waiting.h"
#include "zerorun/communicator.h"
#include "zerorun/device.h"

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

// What a call is named in errors. Most names are never read, so text() puts them into words.
struct CallName {
  std::string label{};             // of a collective, else the whole name
  std::optional<Collective> op{};  // nothing: it is not a collective
  int64_t bytes = 0;
  size_t more = 0;  // collectives that are one call with it

  std::string text() const;
};

// A call of NCCL that may wait for peers.
struct PendingCall {
  CallName name;
  int64_t number = 0;  // among this rank's collectives; 0: it is not a collective
  Event reached{};     // the stream has reached the call
  Event done{};
  std::optional<std::chrono::steady_clock::time_point> since{};  // when it was first seen to wait
};

// The calls of a rank that may wait for peers, in their order: those that are enqueued, then the
// one that NCCL processes. Its owner locks.
class PendingCalls {
 public:
  void begin(PendingCall call);
  // NCCL has enqueued the call that has begun, which is over with `done`.
  void enqueued(Event done);
  // The call that has begun is over.
  void end();
  void clear();
  void forget_done();

  // A name for the notice that the last call that began has waited so long: the same on all ranks,
  // and different each time that one is due.
  std::optional<std::string> due_notice(std::chrono::steady_clock::duration waited);
  bool empty() const { return !calling_ && enqueued_.empty(); }
  // True if NCCL has enqueued the first.
  bool any_enqueued() const { return !enqueued_.empty(); }
  // There is one.
  PendingCall& first() { return enqueued_.empty() ? *calling_ : enqueued_.front(); }
  Event last_done() const { return enqueued_.empty() ? Event() : enqueued_.back().done; }
  // The name of the last call that began, which may be over.
  std::string last() const;

 private:
  std::optional<PendingCall> calling_;
  std::deque<PendingCall> enqueued_;
  CallName last_{.label = "none"};  // when all are over
  int64_t begun_ = 0;
  WaitingNotice notice_;  // about the last that began
};

}  // namespace zerorun
