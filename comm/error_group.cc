#include "comm/error_group.h"

#include <fmt/format.h>

#include <exception>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "zerorun/error.h"

namespace zerorun {

void FirstError::set(std::string_view error) noexcept {
  const std::lock_guard lock(mutex_);
  if (!text_.empty()) return;
  try {
    text_ = error;
  } catch (const std::bad_alloc&) {
    text_ = "aborted";
  }
}

void FirstError::abort(int rank, std::string_view reason, ErrorGroup& others) noexcept {
  try {
    set(fmt::format("rank {} aborted the job: {}", rank, reason));
    others.fail(text());
  } catch (const std::exception&) {  // no memory for the text
    set("aborted");
    others.fail("aborted");
  }
}

std::string FirstError::text() const {
  const std::lock_guard lock(mutex_);
  return text_;
}

void FirstError::check() const {
  const std::lock_guard lock(mutex_);
  if (!text_.empty()) throw CommError(text_);
}

std::shared_ptr<void> ErrorGroup::join(Member member) {
  const std::lock_guard lock(mutex_);
  if (const std::string error = error_.text(); !error.empty()) member.set_error(error);
  members_.push_front(std::move(member));
  return {nullptr, [group = shared_from_this(), place = members_.begin()](void*) {
            const std::scoped_lock left(group->asking_, group->mutex_);
            group->members_.erase(place);
          }};
}

// A member's set_error may call this in turn: that is why the flag comes before the lock. One may
// return only after another one has been called, so all are called at once.
void ErrorGroup::fail(std::string_view error) noexcept {
  if (failed_.exchange(true)) return;
  const std::lock_guard lock(mutex_);
  error_.set(error);
  std::vector<std::thread> threads;
  for (const Member& member : members_) {
    try {
      threads.emplace_back(member.set_error, error);
    } catch (const std::exception&) {  // the system has no thread left
      member.set_error(error);
    }
  }
  for (std::thread& thread : threads) thread.join();
}

void ErrorGroup::propagate() {
  const std::shared_lock asking(asking_);
  std::vector<std::function<std::string()>> errors;
  {
    const std::lock_guard lock(mutex_);
    if (members_.size() < 2) return;
    for (const Member& member : members_) errors.push_back(member.error);
  }
  for (const auto& error : errors) {
    if (failed_) return;
    if (const std::string found = error(); !found.empty()) return fail(found);
  }
}

}  // namespace zerorun
