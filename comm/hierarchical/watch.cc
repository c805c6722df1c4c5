#include "comm/hierarchical/watch.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "comm/hierarchical/connecting.h"
#include "core/check.h"
#include "core/wait_clock.h"
#include "os/socket.h"

namespace zerorun::hierarchical {

namespace {

constexpr std::chrono::milliseconds kTick{100};
constexpr std::chrono::seconds kBeat{1};  // between two signs of life
// A host that is silent for so long is gone, or the link to it. Swapping takes less.
constexpr std::chrono::seconds kSilence{20};
// A collective may still be on its way when rank 0 has done its part and left.
constexpr std::chrono::seconds kGrace{5};
// The time that a peer has to say why it closed a connection.
constexpr std::chrono::seconds kReason{1};
constexpr std::chrono::seconds kLeavingTime{2};
// Rank 0, whose store goes with it, ends after other hosts had this time to read why, and before a
// launcher ends it because they failed. A host that waits, asks or has answered reads at every
// tick.
constexpr std::chrono::milliseconds kHeard{500};
static_assert(kHeard > 2 * kTick);
constexpr std::chrono::milliseconds kPause{5};
// After so long a wait each rank looks whether a report is asked for: the host's first may be what
// the others wait for.
constexpr std::chrono::seconds kLongWait{5};
constexpr std::chrono::seconds kReported = 2 * StallInquiry::kAnswers + std::chrono::seconds(2);
constexpr std::chrono::milliseconds kLook{50};
static_assert(kReported < shm::Control::kReportTime);

constexpr std::string_view kLeft = "left";

}  // namespace

Watch::Watch(const GroupOptions& options, const Topology& topology, shm::Control& control,
             Links& links)
    : options_(options),
      topology_(topology),
      control_(control),
      links_(links),
      store_(*options.store),
      leads_(topology.local_rank(options.rank) == 0),
      inquiry_(options, options.name + '/',
               {.count = topology.hosts(),
                .own = topology.host_of(options.rank),
                .claim = [&control] { return control.claim_report(); },
                .own_ranks = [&control] { return control.activities(); },
                .silent_ranks = [](int) { return std::vector<RankActivity>(); }}),
      heartbeats_(static_cast<size_t>(topology.hosts()), {"", Clock::now()}),
      asked_(Clock::now()),
      watched_(options.job->watch([this] {
        look();
        return kTick;
      })) {
  control_.on_stall([this](const std::string& reason) { report_stall(reason); });
}

std::string Watch::key(std::string_view what, int number) const {
  return fmt::format("{}/{}/{}", options_.name, what, number);
}

// Nothing, too, when the store is gone.
std::optional<std::string> Watch::find(const std::string& key) noexcept {
  try {
    return store_.find(key);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

bool Watch::store_is_gone() noexcept {
  try {
    store_.find(error_key(options_));
    return false;
  } catch (const Dropped&) {
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

std::string Watch::name_of_server() const {
  for (int peer = 0; peer < options_.world_size; ++peer) {
    if (options_.number(peer) == 0) return topology_.name_of_rank(peer);
  }
  return "rank 0";
}

void Watch::wait(Transfer& transfer, int peer, const shm::Announcement& operation) {
  {
    const std::lock_guard lock(mutex_);
    waiting_ = Waiting{peer, operation, Clock::now(), {}};
  }
  const PeerWait wait;
  control_.begin_wait(options_.number(peer));
  std::string problem;
  try {
    transfer.wait();
  } catch (const CommError& error) {
    problem = error.what();
  }
  {
    const std::lock_guard lock(mutex_);
    waiting_.reset();
  }
  if (problem.empty()) control_.end_wait();
  if (!problem.empty()) explain(peer, operation, problem);
}

// The peer may have closed its connections because of an error, which it reports first.
void Watch::explain(int peer, const shm::Announcement& operation, const std::string& text) {
  const Clock::time_point until = Clock::now() + kReason;
  do {
    control_.check();
    if (const auto error = find(error_key(options_))) fail(*error);
    std::this_thread::sleep_for(kPause);
  } while (Clock::now() < until);
  if (options_.number(peer) != 0 && store_is_gone()) {  // the peer may only have heard of it first
    fail(fmt::format(
        "{} left or died, and the store with it; {} ended its connection while rank {} waited for "
        "it in {} ({})",
        name_of_server(), topology_.name_of_rank(peer), options_.own_number(), describe(operation),
        text));
  }
  const bool left = find(key(kLeft, peer)).has_value();
  fail(fmt::format("{} {} while rank {} waited for it in {} ({})", topology_.name_of_rank(peer),
                   left ? "left (its communicator was destroyed)"
                        : "died, or its host cannot be reached any more,",
                   options_.own_number(), describe(operation), text));
}

void Watch::fail(const std::string& text) {
  set_error(text);
  control_.fail(text);
}

void Watch::set_error(std::string_view text) noexcept {
  control_.set_error(text);
  try {
    const std::string first = control_.error();
    spread(first.empty() ? std::string(text) : first);
  } catch (const std::exception&) {  // out of memory
    links_.cancel();
  }
}

void Watch::spread(const std::string& text) noexcept {
  if (spread_.exchange(true)) return;
  try {
    if (!find(error_key(options_))) store_.set(key("error", 0), text);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): peers see closed connections
  }
  links_.cancel();
}

void Watch::leave(const std::vector<int>& linked) noexcept {
  try {
    store_.set(key(kLeft, options_.rank), "");
    const Clock::time_point until = Clock::now() + kLeavingTime;
    for (int peer = 0; peer < options_.world_size; ++peer) {
      // Rank 0's store goes with it, so it stays for all.
      if (options_.rank != 0 && !std::binary_search(linked.begin(), linked.end(), peer)) continue;
      while (!spread_ && Clock::now() < until && !store_.find(key(kLeft, peer))) {
        std::this_thread::sleep_for(kPause);
      }
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): nobody is left to tell
  }
}

void Watch::look() {
  if (spread_) return;
  try {
    options_.job->propagate();
    const std::string local = control_.error();
    if (!local.empty()) return spread(local);
    read_store();
    check_wait();
  } catch (const std::exception& error) {  // of a thread's function it would end the process
    set_error(fmt::format("rank {}: {}", options_.own_number(), error.what()));
  }
}

void Watch::read_store() {
  const bool listens = leads_ || control_.waited() > kLongWait;
  if (!listens && !inquiry_.has_asked()) return;
  const Clock::time_point now = Clock::now();
  bool waits = false;
  {
    const std::lock_guard lock(mutex_);
    waits = waiting_.has_value();
  }
  try {
    if (const std::string error = inquiry_.look(listens); !error.empty()) {
      if (options_.rank != 0) return set_error(error);
      reported_ = now;
      if (!store_.find(error_key(options_))) store_.set(error_key(options_), error);
    }
    if (reported_ && now - *reported_ < kHeard) return;
    if (!waits && !inquiry_.has_asked() && now - asked_ < kBeat) return;
    if (const auto error = store_.find(error_key(options_))) return set_error(*error);
    if (now - asked_ >= kBeat) {
      asked_ = now;
      const int host = topology_.host_of(options_.rank);
      if (options_.rank == 0) check_heartbeats();
      if (leads_ && host != 0) store_.set(key("alive", host), std::to_string(++beats_));
    }
    gone_ = Clock::time_point::max();
  } catch (const Dropped& error) {
    gone_ = std::min(gone_, now);
    if (waits && now - gone_ > kGrace) {
      set_error(fmt::format("{} left or died, and the store with it ({})", name_of_server(),
                            error.what()));
    }
  } catch (const CommError& error) {
    const std::string text = fmt::format(
        "rank {} does not reach {} any more: its host is down, the process is "
        "stopped, or the link between the hosts is cut ({})",
        options_.own_number(), name_of_server(), error.what());
    if (control_.claim_report()) write_own_host_report(text);
    set_error(text);
  }
}

void Watch::check_heartbeats() {
  const Clock::time_point now = Clock::now();
  for (int host = 1; host < topology_.hosts(); ++host) {
    const int rank = topology_.ranks_of(host).front();
    auto& [last, since] = heartbeats_[static_cast<size_t>(host)];
    const std::string beat = store_.find(key("alive", host)).value_or("");
    if (beat != last || store_.find(key(kLeft, rank))) {
      last = beat;
      since = now;
    }
    if (now - since > kSilence) {
      const std::string text = fmt::format(
          "{} gave no sign of life for {} s: its host is down, the process is "
          "stopped, or the link between the hosts is cut",
          topology_.name_of_rank(rank), kSilence.count());
      control_.claim_report();
      return inquiry_.ask(text);
    }
  }
}

void Watch::check_wait() {
  std::string text;
  bool late = false;
  bool too_late = false;  // whoever reports should have done so
  {
    const std::lock_guard lock(mutex_);
    if (!waiting_) return;
    const auto waited = Clock::now() - waiting_->since;
    late = waited >= options_.timeout;
    too_late = waited >= options_.timeout + shm::Control::kReportTime;
    if (!late && !waiting_->notice.due(waited)) return;
    text = fmt::format("rank {} {} {:.{}f} s in {} for {}", options_.own_number(),
                       late ? "waited" : "has waited",
                       std::chrono::duration<double>(waited).count(), late ? 1 : 0,
                       describe(waiting_->operation), topology_.name_of_rank(waiting_->peer));
  }
  if (late) {
    if (control_.claim_report()) return inquiry_.ask(text);
    if (too_late) set_error(text);
    return;
  }
  if (warns()) options_.log().log(LogLevel::warning, "{}", text);
}

bool Watch::warns() const {
  const std::vector<int>& here = topology_.ranks_of(topology_.host_of(options_.rank));
  for (int peer = 0; peer < topology_.local_rank(options_.rank); ++peer) {
    const std::optional<int> awaited = control_.waits_for(peer);
    const bool is_here = std::any_of(here.begin(), here.end(),
                                     [&](int rank) { return awaited == options_.number(rank); });
    if (awaited && !is_here) return false;
  }
  return true;
}

void Watch::report_stall(const std::string& reason) {
  inquiry_.ask(reason);
  const Clock::time_point until = Clock::now() + kReported;
  while (control_.error().empty() && !spread_) {
    if (Clock::now() >= until) return write_own_host_report(reason);
    std::this_thread::sleep_for(kLook);
  }
}

void Watch::write_own_host_report(const std::string& reason) noexcept {
  try {
    StallReport(reason, options_, control_.activities()).write();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the error itself follows
  }
}

}  // namespace zerorun::hierarchical
