#include "comm/hierarchical/watch.h"

#include <exception>
#include <utility>

#include "core/check.h"
#include "core/log.h"
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
constexpr std::chrono::seconds kFarewell{2};
constexpr std::chrono::milliseconds kPause{5};

constexpr std::string_view kLeft = "left";

}  // namespace

Watch::Watch(const CommunicatorOptions& options, const Topology& topology, shm::Control& control,
             Links& links)
    : options_(options),
      topology_(topology),
      control_(control),
      links_(links),
      store_(dynamic_cast<LookupStore*>(options.store.get())),
      leads_(topology.local_rank(options.rank) == 0),
      signs_(static_cast<size_t>(topology.hosts()), {"", Clock::now()}),
      asked_(Clock::now()) {
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
    return store_ != nullptr ? store_->find(key) : std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

void Watch::wait(Transfer& transfer, int peer, const shm::Announcement& operation) {
  {
    const std::lock_guard lock(mutex_);
    waiting_ = Waiting{peer, operation, Clock::now(), {}};
  }
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
  if (!problem.empty()) explain(peer, operation, problem);
}

// The peer may have closed its connections because of an error, which it tells first.
void Watch::explain(int peer, const shm::Announcement& operation, const std::string& text) {
  const Clock::time_point until = Clock::now() + kReason;
  do {
    control_.check();
    if (const auto error = find(key("error", 0))) fail(*error);
    std::this_thread::sleep_for(kPause);
  } while (Clock::now() < until);
  const bool left = find(key(kLeft, peer)).has_value();
  fail(fmt::format("{} {} while rank {} waited for it in {} ({})", topology_.name_of_rank(peer),
                   left ? "left (its communicator was destroyed)"
                        : "died, or its host cannot be reached any more,",
                   options_.rank, describe(operation), text));
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
    if (!find(key("error", 0))) options_.store->set(key("error", 0), text);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): peers see closed connections
  }
  links_.cancel();
}

void Watch::leave() noexcept {
  try {
    options_.store->set(key(kLeft, options_.rank), "");
    const Clock::time_point until = Clock::now() + kFarewell;
    for (int peer = 0; peer < options_.world_size; ++peer) {
      // Rank 0's store goes with it, so it stays for all.
      const int host = topology_.host_of(peer);
      const bool linked =
          host != topology_.host_of(options_.rank) &&
          (topology_.relay(host, options_.rank) == peer ||
           topology_.relay(topology_.host_of(options_.rank), peer) == options_.rank);
      if (!linked && options_.rank != 0) continue;
      while (!spread_ && store_ != nullptr && Clock::now() < until &&
             !store_->find(key(kLeft, peer))) {
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
      look();
    } catch (const std::exception& error) {  // of a thread's function it would end the process
      set_error(fmt::format("rank {}: {}", options_.rank, error.what()));
    }
  }
}

void Watch::look() {
  if (spread_) return;
  const std::string local = control_.error();
  if (!local.empty()) return spread(local);
  if (leads_ && store_ != nullptr) ask_store();
  look_at_wait();
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
    if (const auto error = store_->find(key("error", 0))) return set_error(*error);
    if (now - asked_ >= kBeat) {
      asked_ = now;
      if (options_.rank == 0) {
        look_at_hosts();
      } else {
        store_->set(key("alive", topology_.host_of(options_.rank)), std::to_string(++beats_));
      }
    }
    gone_ = Clock::time_point::max();
  } catch (const Dropped& error) {
    gone_ = std::min(gone_, now);
    if (waits && now - gone_ > kGrace) {
      set_error(fmt::format("{} left or died, and the store with it ({})",
                            topology_.name_of_rank(0), error.what()));
    }
  } catch (const CommError& error) {
    set_error(
        fmt::format("rank {} does not reach {} any more: its host is down, the process is "
                    "stopped, or the link between the hosts is cut ({})",
                    options_.rank, topology_.name_of_rank(0), error.what()));
  }
}

void Watch::look_at_hosts() {
  const Clock::time_point now = Clock::now();
  for (int host = 1; host < topology_.hosts(); ++host) {
    const int rank = topology_.ranks_of(host).front();
    auto& [last, since] = signs_[static_cast<size_t>(host)];
    const std::string sign = store_->find(key("alive", host)).value_or("");
    if (sign != last || store_->find(key(kLeft, rank))) {
      last = sign;
      since = now;
    }
    if (now - since > kSilence) {
      set_error(
          fmt::format("{} gave no sign of life for {} s: its host is down, the process is "
                      "stopped, or the link between the hosts is cut",
                      topology_.name_of_rank(rank), kSilence.count()));
    }
  }
}

void Watch::look_at_wait() {
  std::string text;
  bool late = false;
  {
    const std::lock_guard lock(mutex_);
    if (!waiting_) return;
    const auto waited = Clock::now() - waiting_->since;
    late = waited >= options_.timeout;
    if (!late && !waiting_->notice.due(waited)) return;
    text = fmt::format("rank {} {} {:.{}f} s in {} for {}", options_.rank,
                       late ? "waited" : "has waited",
                       std::chrono::duration<double>(waited).count(), late ? 1 : 0,
                       describe(waiting_->operation), topology_.name_of_rank(waiting_->peer));
  }
  if (late) return set_error(text);
  Logger(options_.rank, options_.world_size).log(LogLevel::warning, "{}", text);
}

}  // namespace zerorun::hierarchical
