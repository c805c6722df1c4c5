#include "comm/family.h"

#include <new>
#include <utility>
#include <vector>

namespace zerorun {

std::shared_ptr<void> Family::join(Member member) {
  const std::lock_guard lock(mutex_);
  if (!error_.empty()) member.tell(error_);
  members_.push_front(std::move(member));
  return {nullptr, [family = shared_from_this(), place = members_.begin()](void*) {
            const std::scoped_lock left(family->asking_, family->mutex_);
            family->members_.erase(place);
          }};
}

// Whom it tells, tells it in turn: that is why the flag comes before the lock.
void Family::fail(std::string_view error) noexcept {
  if (failed_.exchange(true)) return;
  const std::lock_guard lock(mutex_);
  try {
    error_ = error;
  } catch (const std::bad_alloc&) {
    error_ = "failed";
  }
  for (const Member& member : members_) member.tell(error_);
}

void Family::look() {
  const std::shared_lock asking(asking_);
  std::vector<std::function<std::string()>> asks;
  {
    const std::lock_guard lock(mutex_);
    if (members_.size() < 2) return;
    for (const Member& member : members_) asks.push_back(member.ask);
  }
  for (const auto& ask : asks) {
    if (failed_) return;
    if (const std::string found = ask(); !found.empty()) return fail(found);
  }
}

}  // namespace zerorun
