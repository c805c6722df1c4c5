#include "comm/family.h"

#include <exception>
#include <new>
#include <thread>
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

// A member that is told may call this in turn: that is why the flag comes before the lock. To tell
// one may take until another one has been told, so all are told at once.
void Family::fail(std::string_view error) noexcept {
  if (failed_.exchange(true)) return;
  const std::lock_guard lock(mutex_);
  try {
    error_ = error;
  } catch (const std::bad_alloc&) {
    error_ = "failed";
  }
  std::vector<std::thread> threads;
  for (const Member& member : members_) {
    try {
      threads.emplace_back(member.tell, error_);
    } catch (const std::exception&) {  // no thread is to be had
      member.tell(error_);
    }
  }
  for (std::thread& thread : threads) thread.join();
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
