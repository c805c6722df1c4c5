#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "comm/collective_call.h"
#include "core/observers.h"
#include "zerorun/communicator.h"

namespace zerorun {

// The count of a communicator's calls, and who observes them; calls of a group also count for the
// communicator that it was split from, and its observers learn of them.
class CallLedger {
 public:
  // `parent` may be null.
  explicit CallLedger(std::shared_ptr<CallLedger> parent) : parent_(std::move(parent)) {}

  void add(const CollectiveCall& call);
  CommStats stats() const;
  Subscription observe(CollectiveObserver observer) { return observers_.add(std::move(observer)); }
  // False when nobody observes calls.
  bool asked() const { return observers_.asked() || (parent_ && parent_->asked()); }
  void tell(const CollectiveSpan& span);

 private:
  const std::shared_ptr<CallLedger> parent_;
  mutable std::mutex mutex_;
  CommStats stats_;  // guarded by mutex_
  Observers<CollectiveSpan> observers_;
};

}  // namespace zerorun
