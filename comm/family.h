#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace zerorun {

// The communicators of one rank that come from one another by split(): an error of one is an error
// of all. So it reaches every rank that waits in any group of a rank that met it.
class Family : public std::enable_shared_from_this<Family> {
 public:
  // A communicator. Its functions must not throw.
  struct Member {
    // Makes a text its error, unless it has one.
    std::function<void(std::string_view error)> tell;
    // The error that it has, or that a peer has given it; empty: none.
    std::function<std::string()> ask;
  };

  // Until the result is dropped.
  [[nodiscard]] std::shared_ptr<void> join(Member member);
  // Tells all. May be called by any thread, and by `tell`; only the first call counts.
  void fail(std::string_view error) noexcept;
  // Asks all, and tells all what one has: for those who wait, while the error is in another group.
  void look();

 private:
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::list<Member> members_;  // guarded by mutex_, like the next
  std::string error_;
};

}  // namespace zerorun
