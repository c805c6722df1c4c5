#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>

namespace zerorun {

// What the communicators of one rank share that were made from one another by split(): the first
// error of any of them, which all throw from then on, and one thread that watches for errors of
// peers. So if a rank fails in one group, ranks that wait for it in any other group get the error,
// too, and do not wait until the deadline.
class JobState : public std::enable_shared_from_this<JobState> {
 public:
  using Clock = std::chrono::steady_clock;
  // A communicator, as two functions. They must not throw.
  struct Member {
    // Reports the error to the peers and ends all waits.
    std::function<void(std::string_view error)> set_error;
    // Returns an error that a peer has reported. Empty: no error.
    std::function<std::string()> error;
  };

  JobState();
  ~JobState();

  // Adds a member. It leaves when the result is destroyed, which waits until its `error` has
  // returned. In a forked child process, where another thread may have held the locks, nobody
  // leaves.
  [[nodiscard]] std::shared_ptr<void> join(Member member);

  // Sets `error` here and on all members. Only the first call has an effect. Any thread may call
  // it, also from within `set_error`.
  void fail(std::string_view error) noexcept;
  // Fails with: `rank` aborted the job for this reason.
  void abort(int rank, std::string_view reason) noexcept;
  std::string error() const;  // empty: none
  void check() const;         // throws CommError

  // Looks for a member with an error and sets the first one found on all. Called by ranks while
  // they wait, because the error may be in another group. A member's `error` may take long, if it
  // asks a host that is unreachable; fail() and join() do not wait for it.
  void propagate();

  // Lets the watching thread call `look` until the result is destroyed, which waits for a call of
  // it in progress, so `look` must not destroy the result itself. It must neither throw nor wait
  // for peers, and returns the time until its next call, which may come sooner.
  using Look = std::function<Clock::duration()>;
  [[nodiscard]] std::shared_ptr<void> watch(Look look);
  // Makes the watching thread call all functions within `time`. watch() has to be called before.
  void look_within(Clock::duration time);

 private:
  class Watcher;

  // False in a forked child process, which has no watching thread.
  bool is_this_process() const { return process_ == getpid(); }

  const pid_t process_ = getpid();
  mutable std::mutex error_mutex_;
  std::string error_;                 // guarded by error_mutex_
  std::atomic<bool> failed_ = false;  // there is an error
  std::shared_mutex asking_;          // shared by calls of propagate(); locked before mutex_
  std::mutex mutex_;
  std::list<Member> members_;  // guarded by mutex_
  std::once_flag watched_;
  std::unique_ptr<Watcher> watcher_;  // made by the first call of watch()
};

}  // namespace zerorun
