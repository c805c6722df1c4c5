#include "comm/call_ledger.h"

namespace zerorun {

void CallLedger::add(const CollectiveCall& call) {
  if (parent_) parent_->add(call);
  const CollectiveCount added = count_of(call);
  const std::lock_guard lock(mutex_);
  CollectiveCount& count = stats_.by_op[static_cast<size_t>(call.op)];
  count.calls += added.calls;
  count.elements += added.elements;
  count.bytes += added.bytes;
}

CommStats CallLedger::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void CallLedger::tell(const CollectiveSpan& span) {
  if (parent_) parent_->tell(span);
  observers_.tell(span);
}

}  // namespace zerorun
