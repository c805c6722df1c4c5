#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "comm/group_options.h"

namespace zerorun {

// Decides when a rank that waits prints a notice: after 10 s, and again each time the wait has
// doubled.
class WaitingNotice {
 public:
  // True once for each of these times that `waited` has reached.
  bool due(std::chrono::steady_clock::duration waited) {
    if (waited < next_) return false;
    while (next_ <= waited) next_ *= 2;
    return true;
  }
  // The time from the beginning of the wait to the next notice.
  std::chrono::steady_clock::duration next() const { return next_; }

 private:
  std::chrono::steady_clock::duration next_ = std::chrono::seconds(10);
};

// The longest time between two checks of wait_for_key(). The first ones come sooner, so that a rank
// that dies at once is noticed at once.
inline constexpr std::chrono::seconds kKeyCheckInterval{1};

// Waits for a key of the store, up to the deadline of the communicator, and returns its value.
// Prints a notice on stderr if it waits for long. `what` names what this rank waits for. The wait
// ends when GroupOptions::check_parent or `check` throws; null: nothing to check. Throws CommError
// at the deadline, and at once if the store is unreachable.
std::string wait_for_key(const GroupOptions& options, const std::string& key,
                         const std::function<std::string()>& what,
                         const std::function<void()>& check = {});

// Every rank publishes `value` in the store below `name`. Rank 0 passes the values to `take` by
// rank, until all are there or `take` returns false, and then publishes `answer`, which `take` has
// made of them: all ranks have it on return. `purpose`: what the ranks come for, in errors and
// notices about those that do not.
void answer_all(const GroupOptions& options, const std::string& name, const std::string& value,
                const std::string& purpose, std::string& answer,
                const std::function<bool(const std::string& value)>& take,
                const std::function<void()>& check = {});

}  // namespace zerorun
