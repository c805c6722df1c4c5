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

  void add(const CollectiveCall& call) {
    if (parent_) parent_->add(call);
    const CollectiveCount added = count_of(call);
    const std::lock_guard lock(mutex_);
    CollectiveCount& count = stats_.by_op[static_cast<size_t>(call.op)];
    count.calls += added.calls;
    count.elements += added.elements;
    count.bytes += added.bytes;
  }
  CommStats stats() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

  Subscription observe(CollectiveObserver observer) { return observers_.add(std::move(observer)); }
  // False if neither this ledger nor a parent has observers; then the caller can skip taking times.
  bool is_observed() const { return observers_.asked() || (parent_ && parent_->is_observed()); }
  void inform(const CollectiveSpan& span) {
    if (parent_) parent_->inform(span);
    observers_.tell(span);
  }

 private:
  const std::shared_ptr<CallLedger> parent_;
  mutable std::mutex mutex_;
  CommStats stats_;  // guarded by mutex_
  Observers<CollectiveSpan> observers_;
};

}  // namespace zerorun
