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

class ErrorGroup;

// The first error of a communicator, which all its later calls throw. Any thread may use it.
class FirstError {
 public:
  void set(std::string_view error) noexcept;
  // Sets that `rank` aborted the job, here and in `others`.
  void abort(int rank, std::string_view reason, ErrorGroup& others) noexcept;
  std::string text() const;  // empty: no error
  void check() const;        // throws CommError

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

// All communicators of one rank that were made from one another by split(). An error of one of them
// becomes the error of all. So if a rank fails in one group, ranks that wait for it in any other
// group get the error, too, and do not wait until the deadline.
class ErrorGroup : public std::enable_shared_from_this<ErrorGroup> {
 public:
  // A communicator of the group, as two functions. They must not throw.
  struct Member {
    // Sets the communicator's error unless it already has one.
    std::function<void(std::string_view error)> set_error;
    // Returns the communicator's error, also one that a peer has reported to it. Empty: no error.
    std::function<std::string()> error;
  };

  // Adds a member. It leaves the group when the result is destroyed, which waits until its `error`
  // has returned.
  [[nodiscard]] std::shared_ptr<void> join(Member member);
  // Sets `error` on all members. Only the first call has an effect. Any thread may call it, also
  // from within `set_error`.
  void fail(std::string_view error) noexcept;
  // Looks for a member with an error and sets the first one found on all. Called by ranks while
  // they wait, because the error may be in another group. A member's `error` may take long, if it
  // asks a host that is unreachable; fail() and join() do not wait for it.
  void propagate();

 private:
  std::atomic<bool> failed_ = false;
  std::shared_mutex asking_;  // shared by calls of propagate(); locked before mutex_
  std::mutex mutex_;
  std::list<Member> members_;  // guarded by mutex_, like the next
  FirstError error_;
};

}  // namespace zerorun
