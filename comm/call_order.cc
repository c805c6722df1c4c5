#include "comm/call_order.h"

namespace zerorun {

CallOrder::Turn::~Turn() {
  if (started_) return;
  dropped_();
  order_->stop();
}

std::shared_ptr<CallOrder::Turn> CallOrder::take(std::function<void()> dropped) {
  const std::lock_guard lock(mutex_);
  return std::make_shared<Turn>(shared_from_this(), taken_++, std::move(dropped));
}

void CallOrder::wait(uint64_t number) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ >= number || stopped_; });
}

void CallOrder::end_one() {
  {
    const std::lock_guard lock(mutex_);
    ++ended_;
  }
  changed_.notify_all();
}

void CallOrder::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

}  // namespace zerorun
