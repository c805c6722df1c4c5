#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "comm/waiting.h"
#include "zerorun/communicator.h"
#include "zerorun/device.h"

namespace zerorun {

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
  bool is_reached = false;                                       // as CUDA last said
  int64_t begun = 0;                                             // counts all calls
  std::optional<std::chrono::steady_clock::time_point> since{};  // when it was first seen to wait
};

// The calls of a rank that may wait for peers, in their order: those that are enqueued, then the
// one that NCCL processes. Its owner locks. Nothing here asks CUDA.
class PendingCalls {
 public:
  void begin(PendingCall call);
  // NCCL has enqueued the call that has begun, which is over with `done`.
  void enqueued(Event done);
  // The call that has begun is over.
  void end();
  void clear();
  // The first call, which is enqueued, is over, if it still is the one that had `begun`.
  void forget_first(int64_t begun);

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
