#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>

namespace zerorun {

// All communicators of one rank that were made from one another by split(). An error of one of them
// becomes the error of all. So if a rank fails in one group, ranks that wait for it in any other
// group get the error, too, and do not wait until the deadline.
class Family : public std::enable_shared_from_this<Family> {
 public:
  // A communicator of the family, as two functions. They must not throw.
  struct Member {
    // Sets the communicator's error unless it already has one.
    std::function<void(std::string_view error)> tell;
    // Returns the communicator's error, also one that a peer has reported to it. Empty: no error.
    std::function<std::string()> ask;
  };

  // Adds a member. It leaves the family when the result is destroyed, which waits for the end of an
  // `ask`.
  [[nodiscard]] std::shared_ptr<void> join(Member member);
  // Sets `error` on all members. Only the first call has an effect. Any thread may call it, also
  // from within `tell`.
  void fail(std::string_view error) noexcept;
  // Asks all members for an error and sets the first one found on all of them. Called by ranks
  // while they wait, because the error may be in another group. An `ask` may take long, if the host
  // it asks is unreachable; fail() and join() do not wait for it.
  void look();

 private:
  std::atomic<bool> failed_ = false;
  std::shared_mutex asking_;  // shared by those who ask; locked before mutex_
  std::mutex mutex_;
  std::list<Member> members_;  // guarded by mutex_, like the next
  std::string error_;
};

}  // namespace zerorun
