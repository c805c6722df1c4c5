#include "comm/hierarchical/watch.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "comm/hierarchical/connecting.h"
#include "core/check.h"
#include "core/log.h"
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
constexpr std::chrono::milliseconds kPause{5};
// After so long a wait each rank looks whether a report is asked for: the host's first may be what
// the others wait for.
constexpr std::chrono::seconds kLongWait{5};
// For the hosts to publish what their ranks do, and then to read that it is reported: the store
// goes with rank 0.
constexpr std::chrono::seconds kAnswers{5};
constexpr std::chrono::milliseconds kHeard{500};
constexpr std::chrono::milliseconds kLook{50};
static_assert(2 * kAnswers < shm::Control::kReportTime);

constexpr std::string_view kLeft = "left";
constexpr std::string_view kStall = "stall";  // of each host: what it published
constexpr std::string_view kStallAsked = "stall asked";

}  // namespace

Watch::Watch(const GroupOptions& options, const Topology& topology, shm::Control& control,
             Links& links)
    : options_(options),
      topology_(topology),
      control_(control),
      links_(links),
      store_(*options.store),
      leads_(topology.local_rank(options.rank) == 0),
      heartbeats_(static_cast<size_t>(topology.hosts()), {"", Clock::now()}),
      asked_(Clock::now()) {
  control_.on_stall([this](const std::string& reason) { report_stall(reason); });
  thread_ = std::thread([this] { run(); });
}

Watch::~Watch() {
  if (!is_this_process()) {
    thread_.detach();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
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

void Watch::run() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, kTick, [&] { return closing_; })) return;
    }
    try {
      check();
    } catch (const std::exception& error) {  // of a thread's function it would end the process
      set_error(fmt::format("rank {}: {}", options_.own_number(), error.what()));
    }
  }
}

void Watch::check() {
  if (spread_) return;
  options_.errors->propagate();
  const std::string local = control_.error();
  if (!local.empty()) return spread(local);
  const bool asks = leads_ || control_.waited() > kLongWait;
  if (asks) ask_store();
  check_wait();
}

void Watch::ask_store() {
  const Clock::time_point now = Clock::now();
  bool waits = false;
  {
    const std::lock_guard lock(mutex_);
    waits = waiting_.has_value();
  }
  if (!waits && now - asked_ < kBeat) return;
  try {
    if (const auto error = store_.find(error_key(options_))) return set_error(*error);
    if (now - asked_ >= kBeat) {
      asked_ = now;
      if (options_.rank == 0) {
        check_heartbeats();
        if (was_published()) write_stall_report();
      } else {
        const int host = topology_.host_of(options_.rank);
        if (leads_) store_.set(key("alive", host), std::to_string(++beats_));
        if (store_.find(key(kStallAsked, 0)) && control_.claim_report()) publish_activities("");
      }
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
      if (control_.claim_report()) publish_activities(text);
      return write_stall_report();
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
    const bool reports = control_.claim_report();
    if (reports) report_stall(text);
    if (reports || too_late) set_error(text);
    return;
  }
  if (warns()) Logger(options_.own_number(), options_.job_size).log(LogLevel::warning, "{}", text);
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

void Watch::publish_activities(const std::string& reason) {
  const std::string ranks = encode_activities(control_.activities());
  store_.set(key(kStall, topology_.host_of(options_.rank)), reason + '\n' + ranks);
}

void Watch::report_stall(const std::string& reason) noexcept {
  try {
    publish_activities(reason);
    if (options_.rank == 0 && std::this_thread::get_id() == thread_.get_id()) {
      return write_stall_report();
    }
    const Clock::time_point until = Clock::now() + 2 * kAnswers;
    while (Clock::now() < until) {
      if (!control_.error().empty() || spread_) return;
      if (const auto error = store_.find(error_key(options_))) return set_error(*error);
      std::this_thread::sleep_for(kLook);
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the store is gone
  }
  write_own_host_report(reason);
}

bool Watch::was_published() {
  for (int host = 0; host < topology_.hosts(); ++host) {
    if (store_.find(key(kStall, host))) return true;
  }
  return false;
}

// Rank 0's: what all hosts publish, by host; empty for one that does not answer in time.
std::vector<std::string> Watch::collect_stall() {
  store_.set(key(kStallAsked, 0), "");
  if (control_.claim_report()) publish_activities("");
  const Clock::time_point until = Clock::now() + kAnswers;
  std::vector<std::string> parts;
  for (int host = 0; host < topology_.hosts(); ++host) {
    std::optional<std::string> part;
    while (!(part = store_.find(key(kStall, host))) && Clock::now() < until) {
      std::this_thread::sleep_for(kPause);
    }
    parts.push_back(part.value_or(""));
  }
  return parts;
}

void Watch::write_stall_report() {
  std::string reason;
  std::vector<RankActivity> ranks;
  for (const std::string& part : collect_stall()) {
    const size_t end = part.find('\n');
    if (end == std::string::npos) continue;
    if (reason.empty()) reason = part.substr(0, end);
    const std::vector<RankActivity> of_host = decode_activities(part.substr(end + 1));
    ranks.insert(ranks.end(), of_host.begin(), of_host.end());
  }
  StallReport(reason, options_, std::move(ranks)).write();
  store_.set(error_key(options_), reason);
  std::this_thread::sleep_for(kHeard);
  set_error(reason);
}

void Watch::write_own_host_report(const std::string& reason) noexcept {
  try {
    StallReport(reason, options_, control_.activities()).write();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the error itself follows
  }
}

}  // namespace zerorun::hierarchical
