#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "comm/collective_call.h"
#include "core/observers.h"
#include "zerorun/communicator.h"

namespace zerorun {

// Counts a communicator's calls and informs its observers. Calls of a communicator made by split()
// also count for its parent, whose observers are informed too. Safe to use from several threads.
class CallLedger {
 public:
  // `parent`: the ledger of the communicator that was split; null if there is none.
  explicit CallLedger(std::shared_ptr<CallLedger> parent) : parent_(std::move(parent)) {}

  void add(const CollectiveCall& call);
  CommStats stats() const;
  Subscription observe(CollectiveObserver observer) { return observers_.add(std::move(observer)); }
  // False if neither this ledger nor a parent has observers; then the caller can skip taking times.
  bool asked() const { return observers_.asked() || (parent_ && parent_->asked()); }
  void tell(const CollectiveSpan& span);

 private:
  const std::shared_ptr<CallLedger> parent_;
  mutable std::mutex mutex_;
  CommStats stats_;  // guarded by mutex_
  Observers<CollectiveSpan> observers_;
};

}  // namespace zerorun
