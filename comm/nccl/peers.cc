#include "comm/nccl/peers.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "comm/waiting.h"
#include "core/check.h"
#include "os/python_stacks.h"
#include "os/socket.h"

namespace zerorun {

namespace {

constexpr std::chrono::milliseconds kSlice{100};
constexpr std::chrono::milliseconds kStackPatience{1000};
constexpr std::chrono::seconds kLeavingTime{3};
// A collective may still be on its way when rank 0 has done its part and left.
constexpr std::chrono::seconds kGrace{5};
constexpr const char* kLeft = "left";    // set by whoever leaves
constexpr const char* kAlone = "alone";  // by whoever does so without the others

}  // namespace

NcclPeers::NcclPeers(const GroupOptions& options, int device)
    : options_(options),
      own_{.process = this_process(),
           .device = device,
           .host = options.host.empty() ? 0 : std::hash<std::string>()(options.host)} {}

// A store that is gone stays so, and has no value: whoever waits for one of it, waits for nothing,
// and one thread looks for all groups.
std::optional<std::string> NcclPeers::find(const std::string& key,
                                           std::chrono::milliseconds timeout) const {
  constexpr std::chrono::milliseconds kMaxPause{20};
  const auto until = Clock::now() + timeout;
  std::chrono::milliseconds pause{1};
  try {
    while (gone_since_.load() == kNever) {
      if (std::optional<std::string> value = options_.store->find(key)) return value;
      if (Clock::now() >= until) break;
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kMaxPause);
    }
  } catch (const Dropped&) {
    auto never = kNever;
    gone_since_.compare_exchange_strong(never, Clock::now());
  } catch (const CommError&) {  // there is no value, nor sooner for whoever asks again
    std::this_thread::sleep_until(until);
  }
  return std::nullopt;
}

std::optional<NcclPeers::Presence> NcclPeers::presence(int rank,
                                                       std::chrono::milliseconds timeout) const {
  const std::optional<std::string> bytes = find(rank_key(rank), timeout);
  return bytes ? std::optional(presence_in(*bytes, rank)) : std::nullopt;
}

NcclPeers::Presence NcclPeers::presence_in(const std::string& bytes, int rank) const {
  if (bytes.size() != sizeof(Presence)) {
    fail<CommError>("rank {} runs another version of zerorun than rank {}", options_.number(rank),
                    options_.own_number());
  }
  Presence presence;
  std::memcpy(&presence, bytes.data(), bytes.size());
  return presence;
}

void NcclPeers::arrive() {
  try {
    options_.store->set(rank_key(options_.rank), bytes_of(own_));
  } catch (const Dropped&) {
    fail_to_join();
  }
}

void NcclPeers::fail_to_join() const {
  fail<CommError>("rank {}: rank 0 left, and the store with it, before all ranks had joined",
                  options_.own_number());
}

void NcclPeers::give_id(const std::string& id) { options_.store->set(key("id"), id); }

std::string NcclPeers::wait_for_id(const Check& check) const {
  while (true) {
    check();
    if (std::optional<std::string> value = find(key("id"), kSlice)) return *std::move(value);
    if (gone_since_.load() != kNever) fail_to_join();
  }
}

void NcclPeers::meet(const Check& check) {
  std::string all;
  const auto take = [&](const std::string& bytes) {
    presence_in(bytes, static_cast<int>(all.size() / sizeof(Presence)));
    all += bytes;
    return true;
  };
  try {
    answer_all(options_, prefix() + "rank", bytes_of(own_), "to come with a GPU", all, take, check);
  } catch (const Dropped&) {
    fail_to_join();
  }
  const auto ranks = static_cast<size_t>(options_.world_size);
  if (all.size() != ranks * sizeof(Presence)) {
    fail<CommError>("rank {}: got no list of the ranks from rank {}", options_.own_number(),
                    options_.number(0));
  }
  std::vector<Presence> met(ranks);
  std::memcpy(met.data(), all.data(), all.size());
  met_ = std::move(met);
}

int NcclPeers::ranks_of_this_host() const {
  return static_cast<int>(std::count_if(
      met_.begin(), met_.end(), [&](const Presence& peer) { return is_of_this_host(peer); }));
}

std::vector<int> NcclPeers::devices_of_this_process() const {
  std::vector<int> devices;
  for (const Presence& peer : met_) {
    if (peer.process == own_.process && peer.device != own_.device) devices.push_back(peer.device);
  }
  return devices;
}

std::optional<std::string> NcclPeers::error(std::chrono::milliseconds timeout) const {
  return find(key("error"), timeout);
}

void NcclPeers::report(std::string_view error) noexcept {
  try {
    options_.store->set(key("error"), std::string(error));
  } catch (const std::exception&) {  // the store is gone: peers have the deadline
  }
}

bool NcclPeers::claim(const std::string& what) noexcept {
  try {
    if (options_.store->find(key(what))) return false;
    options_.store->set(key(what), "");
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): nobody else claims it
  }
  return true;
}

std::vector<RankActivity> NcclPeers::own_activity(std::string last_call,
                                                  std::optional<double> waited_s) const {
  RankActivity mine;
  mine.rank = options_.own_number();
  mine.pid = own_.process.pid;
  mine.host = host_name();
  mine.state = waited_s ? kWaits : state_of(own_.process);
  mine.waited_s = waited_s.value_or(0);
  if (!waited_s) mine.python_stacks = python_stacks_of(own_.process, kStackPatience);
  mine.operation = std::move(last_call);
  return {mine};
}

std::vector<RankActivity> NcclPeers::silent(int rank) const {
  RankActivity silent;
  silent.rank = options_.number(rank);
  silent.operation = "?";
  silent.state = "did not answer";
  const auto peer = static_cast<size_t>(rank);
  if (peer < met_.size() && own_.process.can_see(met_[peer].process)) {
    const ProcessIdentity& process = met_[peer].process;
    silent.pid = process.pid;
    silent.host = host_name();
    silent.state = fmt::format("did not answer; {}", state_of(process));
    silent.python_stacks = python_stacks_of(process, kStackPatience);
  }
  return {silent};
}

void NcclPeers::leave(int64_t calls) noexcept {
  try {
    Presence presence = own_;
    presence.calls = calls;
    options_.store->set(rank_key(options_.rank), bytes_of(presence));
    options_.store->set(key(kLeft), std::to_string(options_.rank));
  } catch (const std::exception&) {  // the store is gone, and with it whoever would wait
  }
}

void NcclPeers::wait_until_all_left() const noexcept {
  // Ranks that are threads share a store that does not go.
  if (options_.rank != 0 || options_.store->local_segments() != nullptr) return;
  constexpr std::chrono::milliseconds kAskAgain{5};
  const auto until = Clock::now() + kLeavingTime;
  try {
    for (size_t i = 1; i < met_.size(); ++i) {
      while (Clock::now() < until && !has_died(met_[i].process)) {
        const std::optional<Presence> now = presence(static_cast<int>(i), kSlice);
        if (!now || now->calls != kStays) break;
        std::this_thread::sleep_for(kAskAgain);
      }
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): whoever stays has the deadline
  }
}

bool NcclPeers::others_leave() const {
  for (size_t i = 0; i < met_.size(); ++i) {
    if (static_cast<int>(i) == options_.rank || !is_of_this_host(met_[i])) continue;
    const auto now = presence(static_cast<int>(i), std::chrono::milliseconds(0));
    if (!now) return gone_since_.load() != kNever;
    if (now->calls == kStays) return false;
  }
  return true;
}

void NcclPeers::leave_alone() noexcept {
  try {
    options_.store->set(key(kAlone), std::to_string(options_.rank));
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): nobody can know any more
  }
}

bool NcclPeers::any_gone() const {
  for (size_t i = 0; i < met_.size(); ++i) {
    if (!has_died(met_[i].process)) continue;
    const auto now = presence(static_cast<int>(i), std::chrono::milliseconds(0));
    if (!now || now->calls == kStays) return true;  // else it had left before
  }
  return find(key(kAlone), std::chrono::milliseconds(0)).has_value();
}

std::string NcclPeers::missing(int64_t call, const std::string& what) const {
  // One request, unless some rank has left.
  const bool some_left = find(key(kLeft), std::chrono::milliseconds(0)).has_value();
  for (size_t i = 0; i < met_.size(); ++i) {
    const auto rank = static_cast<int>(i);
    if (rank == options_.rank) continue;
    const ProcessIdentity& process = met_[i].process;
    const bool died = has_died(process);
    if (!died && !some_left) continue;
    const std::optional<Presence> now = presence(rank, kSlice);
    const bool left = now && now->calls != kStays;
    if (left ? now->calls >= call : !died) continue;
    return fmt::format(
        "rank {} (pid {}) {} while rank {} waited for it in {}", options_.number(rank), process.pid,
        left ? "left (its communicator was destroyed)" : "died", options_.own_number(), what);
  }
  if (Clock::now() - kGrace > gone_since_.load()) {
    return fmt::format("rank 0 left, and the store with it, while rank {} waited in {}",
                       options_.own_number(), what);
  }
  return {};
}

}  // namespace zerorun
