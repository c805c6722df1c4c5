#include "comm/family.h"

#include <new>
#include <utility>

namespace zerorun {

std::shared_ptr<void> Family::join(Member member) {
  const std::lock_guard lock(mutex_);
  if (!error_.empty()) member.tell(error_);
  members_.push_front(std::move(member));
  return {nullptr, [family = shared_from_this(), place = members_.begin()](void*) {
            const std::lock_guard left(family->mutex_);
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
  std::string found;
  {
    const std::lock_guard lock(mutex_);
    if (failed_ || members_.size() < 2) return;
    for (const Member& member : members_) {
      if (found.empty()) found = member.ask();
    }
  }
  if (!found.empty()) fail(found);
}

}  // namespace zerorun
