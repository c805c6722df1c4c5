#include "comm/shm/control.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>
#include <new>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "core/wait_clock.h"

namespace zerorun::shm {

namespace {

// How long a rank that waits keeps its core: longer than peers that are in step need, shorter than
// anybody misses.
constexpr int kPauses = 200;
constexpr std::chrono::microseconds kSpin{50};
// How often a rank that sleeps looks whether its peers are alive, and at how many: so that a
// thousand ranks that wait for a late one leave it some of the host's time.
constexpr std::chrono::milliseconds kSlice{50};
constexpr int kLooks = 16;
constexpr int kRanksOfSlice = 64;
constexpr size_t kMaxNames = 8;  // in a message

void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Golden, and prime to the number of ranks, so that neighbours in rank order are far apart. Ranks
// that start one after the other come one after the other: whoever waited for them in that order
// would be woken by each, and a thousand of them a million times.
int stride_for(int world_size) {
  constexpr double kGolden = 0.618;
  int stride = std::max(1, static_cast<int>(kGolden * world_size));
  while (std::gcd(stride, world_size) != 1) ++stride;
  return stride;
}

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "the kernel reads 32 bits");

// Sleeps until futex_wake is called for `word`, but only if `word` still has the value `expected`,
// and at most for `timeout`. May return early. Works between processes that share the memory of
// `word`.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected,
                std::chrono::nanoseconds timeout) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(timeout);
  const timespec limit{.tv_sec = seconds.count(), .tv_nsec = (timeout - seconds).count()};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &limit, nullptr, 0);
}
// Wakes all threads that sleep in futex_wait for `word`.
void futex_wake(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

std::shared_ptr<Segment> meet(const GroupOptions& options, LocalSegments* local) {
  const std::string key = options.name + "/control";
  if (options.rank != 0) {
    const SegmentTicket ticket = decode_ticket(wait_for_key(options, key, [&] {
      return fmt::format("rank {} to make the shared memory of '{}'", options.number(0),
                         options.name);
    }));
    return local != nullptr ? local->find(ticket) : Segment::open(ticket);
  }
  std::shared_ptr<Segment> segment = Segment::create(control_bytes(options.world_size));
  for (int rank = 0; rank < options.world_size; ++rank) {
    ::new (segment->data() + slot_offset(rank)) RankSlot;
  }
  ::new (segment->data()) ControlHeader;
  if (local != nullptr) local->add(segment);
  options.store->set(key, encode(segment->ticket()));
  return segment;
}

}  // namespace

Control::Control(GroupOptions options, LocalSegments* local)
    : rank_(options.rank),
      world_size_(options.world_size),
      stride_(stride_for(options.world_size)),
      options_(std::move(options)),
      process_(this_process()),
      segment_(meet(options_, local)) {
  claim_slot();
  try {
    advance();
  } catch (...) {
    leave();
    throw;
  }
  if (rank_ == 0) segment_->close_file();  // all have it
  options_.store = nullptr;
  options_.check_parent = nullptr;
}

void Control::claim_slot() {
  RankSlot& mine = slot(rank_);
  if (mine.claimed.exchange(1) != 0) {
    zerorun::fail<CommError>("rank {} is taken by another process: each needs its own RANK",
                             number(rank_));
  }
  mine.process = process_;
  copy_cut(host_name(), mine.host);
  mine.membership.store(Membership::joined, std::memory_order_release);
}

RankSlot& Control::slot(int peer) const {
  return *std::launder(reinterpret_cast<RankSlot*>(segment_->data() + slot_offset(peer)));
}

std::byte* Control::stage(int peer, uint32_t step) const {
  return segment_->data() + stages_offset(world_size_, peer) + step % 2 * kStageBytes;
}

ControlHeader& Control::header() const {
  return *std::launder(reinterpret_cast<ControlHeader*>(segment_->data()));
}

Failure& Control::failure() const { return header().failure; }

void Control::announce(Announcement announcement, std::string_view label) {
  announcement.sequence = ++sequence_;
  set_label(announcement, label);
  current_ = announcement;
  slot(rank_).announcements[(step_ + 1) % 2].store(announcement);
}

void Control::advance() {
  check();
  RankSlot& mine = slot(rank_);
  ++step_;
  // Sequentially consistent with wait_for(): either this rank sees the sleeper, or the sleeper sees
  // the step.
  mine.step.store(step_, std::memory_order_seq_cst);
  if (mine.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake(mine.step);
  int peer = rank_;
  for (int i = 0; i < world_size_; ++i) {
    wait_for(peer);
    peer = (peer + stride_) % world_size_;
  }
}

bool Control::arrived(int peer) const {
  // Counters wrap: what counts is the distance.
  return static_cast<int32_t>(slot(peer).step.load(std::memory_order_acquire) - step_) >= 0;
}

bool Control::spin_for(int peer) const {
  for (int i = 0; i < kPauses; ++i) {
    if (arrived(peer)) return true;
    pause_core();
  }
  // The peer may be waiting for this core.
  const Clock::time_point end = Clock::now() + kSpin;
  do {
    sched_yield();
    if (arrived(peer)) return true;
  } while (Clock::now() < end);
  return false;
}

void Control::wait_for(int peer) {
  if (arrived(peer)) return;
  const PeerWait wait;
  if (spin_for(peer)) return;
  RankSlot& theirs = slot(peer);
  const Clock::time_point started = Clock::now();
  WaitingNotice notice;
  begin_wait(number(peer));
  while (!arrived(peer)) {
    examine_peers(started, notice);
    theirs.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = theirs.step.load(std::memory_order_seq_cst);
    const auto slice = kSlice * (1 + world_size_ / kRanksOfSlice);
    if (static_cast<int32_t>(seen - step_) < 0) futex_wait(theirs.step, seen, slice);
    theirs.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
  end_wait();
}

void Control::begin_wait(int rank) {
  slot(rank_).wait.store({.since_ns = Clock::now().time_since_epoch().count(), .rank = rank});
}

void Control::end_wait() { slot(rank_).wait.store({}); }

bool Control::all_arrived() const {
  for (int peer = 0; peer < world_size_; ++peer) {
    if (!arrived(peer)) return false;
  }
  return true;
}

bool Control::has_left(int peer) const {
  return slot(peer).membership.load(std::memory_order_acquire) == Membership::left;
}

bool Control::has_died(int peer) const {
  if ((peer - looked_ + world_size_) % world_size_ >= kLooks) return false;
  const RankSlot& theirs = slot(peer);
  return theirs.membership.load(std::memory_order_acquire) == Membership::joined &&
         theirs.process != process_ && !is_running(theirs.process);
}

void Control::fail_without(int peer, std::string_view what) {
  fail(fmt::format("{} {} while rank {} waited for it in {}; its last operation: {}",
                   name_of_rank(peer),
                   has_left(peer) ? "left (its communicator was destroyed)" : "died", number(rank_),
                   what, last_operation(peer)));
}

void Control::check_peers(std::string_view what) {
  check();
  for (int peer = 0; peer < world_size_; ++peer) {
    if (has_left(peer) || has_died(peer)) fail_without(peer, what);
  }
  looked_ = (looked_ + kLooks) % world_size_;
}

void Control::examine_peers(Clock::time_point started, WaitingNotice& notice) {
  try {
    options_.job->propagate();
    if (options_.check_parent) options_.check_parent();
    check();
  } catch (const CommError&) {
    // A peer that has taken this step may fail in the next one before this rank looks up.
    if (all_arrived()) return;
    throw;
  }
  const Clock::duration waited = Clock::now() - started;
  std::vector<int> missing;
  for (int peer = 0; peer < world_size_; ++peer) {
    if (arrived(peer)) continue;
    const bool gone = has_left(peer) || (waited >= kSlice && has_died(peer));
    // A peer may have counted its last step just before it went.
    if (gone && !arrived(peer)) fail_without(peer, describe(current_));
    missing.push_back(peer);
  }
  looked_ = (looked_ + kLooks) % world_size_;
  const bool late = waited >= options_.timeout;
  if (missing.empty() || (!late && !notice.due(waited))) return;
  std::string names;
  for (size_t i = 0; i < std::min(missing.size(), kMaxNames); ++i) {
    names += fmt::format("{}{}, last operation: {}", names.empty() ? "" : "; ",
                         name_of_rank(missing[i]), last_operation(missing[i]));
  }
  if (missing.size() > kMaxNames) {
    names += fmt::format("; and {} more", missing.size() - kMaxNames);
  }
  const double seconds = std::chrono::duration<double>(waited).count();
  if (late) {
    return end_late_wait(waited, fmt::format("rank {} waited {:.1f} s in {} for {}", number(rank_),
                                             seconds, describe(current_), names));
  }
  // The first of the ranks that wait speaks for all of them.
  int first = 0;
  while (first != rank_ && !arrived(first)) ++first;
  if (first != rank_) return;
  const size_t others = static_cast<size_t>(world_size_) - missing.size() - 1;
  const std::string who = others == 0 ? "has" : fmt::format("and {} more have", others);
  options_.log().log(LogLevel::warning, "rank {} {} waited {:.0f} s in {} for {}", number(rank_),
                     who, seconds, describe(current_), names);
}

// One rank reports, which takes a moment; then its error is everybody's.
void Control::end_late_wait(Clock::duration waited, const std::string& text) {
  const bool reports = claim_report();
  if (!reports && waited < options_.timeout + kReportTime) return;
  if (reports) {
    if (report_) {
      report_(text);
    } else {
      StallReport(text, options_, activities()).write();
    }
  }
  fail(text);
}

Announcement Control::announcement(int peer) const {
  return slot(peer).announcements[step_ % 2].load();
}

void Control::check_agreement() {
  const Announcement first = announcement(0);
  for (int peer = 1; peer < world_size_; ++peer) {
    const Announcement other = announcement(peer);
    if (same_operation(first, other)) continue;
    fail(fmt::format(
        "ranks diverged: {} calls {}, but {} calls {}; every rank must make the same calls in the "
        "same order",
        name_of_rank(0), describe(first), name_of_rank(peer), describe(other)));
  }
}

void Control::check() {
  const uint32_t state = failure().state.load(std::memory_order_acquire);
  if (state == Failure::written) throw CommError(keep_error(failure().text.data()));
  options_.job->check();
  if (left_) {
    zerorun::fail<CommError>("the communicator of rank {} was destroyed before its last work",
                             number(rank_));
  }
}

void Control::fail(const std::string& text) {
  record_failure(text);
  throw CommError(keep_error(text));
}

void Control::abort(std::string_view reason) noexcept {
  try {
    set_error(fmt::format("{} aborted the job: {}", name_of_rank(rank_), reason));
  } catch (...) {
    record_failure(reason);
  }
}

void Control::set_error(std::string_view text) noexcept {
  record_failure(text);
  try {
    keep_error(text);
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory for a copy of what is recorded
  }
}

std::string Control::error() const {
  if (failure().state.load(std::memory_order_acquire) != Failure::written) return {};
  return failure().text.data();
}

// The error of this rank from now on: the one it had, or the one that all share, or `text` when
// another rank is just writing that (or died doing so).
std::string Control::keep_error(std::string_view text) {
  const bool written = failure().state.load(std::memory_order_acquire) == Failure::written;
  options_.job->fail(written ? failure().text.data() : text);
  return options_.job->error();
}

void Control::record_failure(std::string_view text) noexcept {
  Failure& shared = failure();
  uint32_t expected = Failure::none;
  if (!shared.state.compare_exchange_strong(expected, Failure::being_written)) return;
  copy_cut(text, shared.text);
  shared.state.store(Failure::written, std::memory_order_release);
  wake_all();
}

void Control::leave() noexcept {
  // A forked child has a copy of the communicator, but is not the rank.
  if (getpid() != process_.pid) return;
  left_ = true;
  slot(rank_).membership.store(Membership::left, std::memory_order_release);
  wake_all();
}

void Control::wake_all() const noexcept {
  for (int peer = 0; peer < world_size_; ++peer) {
    if (slot(peer).sleepers.load(std::memory_order_seq_cst) != 0) futex_wake(slot(peer).step);
  }
}

std::string Control::name_of_rank(int peer) const {
  const RankSlot& theirs = slot(peer);
  if (theirs.membership.load(std::memory_order_acquire) == Membership::absent) {
    return fmt::format("rank {} (has not joined)", number(peer));
  }
  return fmt::format("rank {} (pid {} on {})", number(peer), theirs.process.pid,
                     theirs.host.data());
}

Announcement Control::last_announcement(int peer) const {
  const auto& [even, odd] = slot(peer).announcements;
  const Announcement a = even.load();
  const Announcement b = odd.load();
  return a.sequence > b.sequence ? a : b;
}

std::string Control::last_operation(int peer) const {
  const Announcement last = last_announcement(peer);
  return last.sequence == 0 ? "none" : describe(last);
}

}  // namespace zerorun::shm
