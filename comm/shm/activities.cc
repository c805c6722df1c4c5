// Finds out what a host's ranks do while others wait for them.
#include "comm/shm/control.h"
#include "os/python_stacks.h"

namespace zerorun::shm {

namespace {

constexpr std::chrono::milliseconds kStackPatience{1000};

}  // namespace

RankActivity Control::activity(int peer) const {
  const RankSlot& theirs = slot(peer);
  RankActivity rank;
  rank.rank = number(peer);
  const Membership membership = theirs.membership.load(std::memory_order_acquire);
  if (membership == Membership::absent) {
    rank.state = "has not joined";
    return rank;
  }
  rank.pid = theirs.process.pid;
  rank.host = theirs.host.data();
  const Announcement last = last_announcement(peer);
  rank.operation = last_operation(peer);
  rank.label = last.label.data();
  rank.state = membership == Membership::left ? "has left" : state_of(theirs.process);
  const bool runs = is_running(theirs.process);
  const bool stopped = rank.state.starts_with("is stopped");
  if (const Wait wait = theirs.wait.load(); wait.since_ns != 0 && runs && !stopped) {
    const Clock::duration since = Clock::now().time_since_epoch() - Clock::duration(wait.since_ns);
    rank.state = kWaits;
    rank.waits_for = static_cast<int>(wait.rank);
    rank.waited_s = std::chrono::duration<double>(since).count();
  } else if (runs) {
    rank.python_stacks = python_stacks_of(theirs.process, kStackPatience);
  }
  return rank;
}

std::vector<RankActivity> Control::activities() const {
  std::vector<RankActivity> ranks;
  ranks.reserve(static_cast<size_t>(world_size_));
  for (int peer = 0; peer < world_size_; ++peer) ranks.push_back(activity(peer));
  return ranks;
}

std::optional<int> Control::waits_for(int peer) const {
  const Wait wait = slot(peer).wait.load();
  return wait.since_ns != 0 ? std::optional(static_cast<int>(wait.rank)) : std::nullopt;
}

std::chrono::steady_clock::duration Control::waited() const {
  const Wait wait = slot(rank_).wait.load();
  if (wait.since_ns == 0) return {};
  return Clock::now().time_since_epoch() - Clock::duration(wait.since_ns);
}

}  // namespace zerorun::shm
