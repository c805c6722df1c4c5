#include "zero/timeline/straggler_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "comm/agreement.h"
#include "os/process_identity.h"

namespace zerorun {

namespace {

constexpr double kLongerSave = 1.0 / 3.0;  // of the late rank's save: what half as long again adds
constexpr double kGone = 2.0;              // without a save for so many times their distance

StepPart largest(const std::array<double, kStepParts>& values) {
  return static_cast<StepPart>(std::max_element(values.begin(), values.end()) - values.begin());
}

constexpr int kBits = 12;
constexpr int64_t kUnit = (int64_t{1} << kBits) - 1;  // the word of a whole step

constexpr int64_t kLogEvery_ns = 60'000'000'000;
constexpr size_t kNameWords = 8;  // of a host's name, which is cut

std::vector<std::string> names_of_hosts(Communicator& job, Stream& stream) {
  const std::string own = host_name();
  if (job.local_world_size() == job.world_size()) return {own};
  std::array<int64_t, kNameWords> words{};
  std::memcpy(words.data(), own.data(), std::min(own.size(), sizeof(words) - 1));
  const std::vector<int64_t> all = Agreement(job, stream).gather(words, "names of the hosts");
  std::vector<std::string> names;
  for (size_t at = 0; at < all.size(); at += kNameWords) {
    names.emplace_back(reinterpret_cast<const char*>(&all[at]));
  }
  return names;
}

// Once a minute in this process.
bool is_log_due() {
  static std::atomic<int64_t> logged_ns{0};  // 0: never
  const int64_t now = steady_ns();
  int64_t last = logged_ns.load();
  if (last != 0 && now - last < kLogEvery_ns) return false;
  return logged_ns.compare_exchange_strong(last, now);
}

}  // namespace

std::string_view name_of(StepPart part) {
  static constexpr std::array<std::string_view, kStepParts> kNames = {"compute", "data", "copy",
                                                                      "save"};
  const auto index = static_cast<size_t>(part);
  return index < kNames.size() ? kNames[index] : "";
}

std::string Straggler::text() const {
  constexpr std::array<std::string_view, kStepParts> kWords = {
      "in computation", "between calls of the engine (data loading, evaluation, logging)",
      "in offloading", "in saving checkpoints"};
  return fmt::format("rank {} (host {}) is waited for: {:.0f} % of the time, spent {}", rank, host,
                     100.0 * share, kWords[static_cast<size_t>(cause)]);
}

void StragglerSearch::Window::add(const Entry& entry) {
  if (entries.size() < capacity) {
    entries.reserve(capacity);
    entries.push_back(entry);
  } else {
    entries[next] = entry;
  }
  next = (next + 1) % capacity;
}

std::optional<StragglerSearch::Found> StragglerSearch::Window::straggler() const {
  if (entries.size() < capacity) return std::nullopt;
  // The only one that may have the majority (Boyer and Moore).
  int rank = kNobody;
  int lead = 0;
  for (const Entry& entry : entries) {
    if (lead == 0) rank = entry.late;
    lead += entry.late == rank ? 1 : -1;
  }
  if (rank == kNobody) return std::nullopt;
  std::array<double, kSteps> shares{};
  size_t count = 0;
  std::array<double, kStepParts> excess{};
  for (const Entry& entry : entries) {
    if (entry.late != rank) continue;
    shares[count++] = entry.share;
    for (size_t part = 0; part < excess.size(); ++part) {
      excess[part] += entry.excess[part] * entry.seconds;
    }
  }
  if (10 * count < 9 * capacity) return std::nullopt;
  const auto middle = shares.begin() + static_cast<std::ptrdiff_t>(count / 2);
  std::nth_element(shares.begin(), middle, shares.begin() + static_cast<std::ptrdiff_t>(count));
  if (*middle < kShare) return std::nullopt;
  return Found{rank, *middle, largest(excess)};
}

template <typename Value>
double StragglerSearch::ranked(size_t index, const Value& value) {
  values_.clear();
  for (const StepShares& rank : ranks_) values_.push_back(value(rank));
  const auto at = values_.begin() + static_cast<std::ptrdiff_t>(index);
  std::nth_element(values_.begin(), at, values_.end());
  return *at;
}

// Of two ranks the median is the other one.
std::pair<const StepShares*, double> StragglerSearch::last_rank() {
  const auto waited = [](const StepShares& rank) { return rank.waited; };
  const auto worked = [](const StepShares& rank) {
    return rank[StepPart::data] + rank[StepPart::copy] + rank[StepPart::save];
  };
  const auto is_earlier = [&](const StepShares& a, const StepShares& b) {
    return on_host_ ? waited(a) > waited(b) : worked(a) < worked(b);
  };
  const auto last = std::max_element(ranks_.begin(), ranks_.end(), is_earlier);
  double late = ranked(ranks_.size() / 2, waited) - waited(*last);
  if (!on_host_) late = std::min(late, worked(*last) - ranked((ranks_.size() - 1) / 2, worked));
  return {&*last, late};
}

StragglerSearch::Entry StragglerSearch::look_at_ranks(double seconds) {
  const auto [last, share] = last_rank();
  Entry entry;
  entry.share = share;
  if (share < kLate || share * seconds < kLate_s) return entry;
  entry.late = static_cast<int>(last - ranks_.data());
  for (size_t part = 0; part < entry.excess.size(); ++part) {
    if (!on_host_ && static_cast<StepPart>(part) == StepPart::compute) continue;
    const double own = last->parts[part];
    entry.excess[part] = own - ranked((ranks_.size() - 1) / 2,
                                      [part](const StepShares& rank) { return rank.parts[part]; });
  }
  return entry;
}

void StragglerSearch::add(std::span<const int64_t> words, double seconds) {
  if (words.size() < 2) return;
  ranks_.clear();
  for (const int64_t word : words) ranks_.push_back(decode_shares(word));
  Entry entry = look_at_ranks(seconds);
  entry.seconds = seconds;
  since_save_s_ += seconds;
  const bool saved = std::any_of(ranks_.begin(), ranks_.end(), [](const StepShares& rank) {
    return rank[StepPart::save] >= kLate;
  });
  if (saved) {
    if (entry.late != kNobody) {
      const double own = ranks_[static_cast<size_t>(entry.late)][StepPart::save];
      const double longer = entry.excess[static_cast<size_t>(StepPart::save)];
      if (largest(entry.excess) != StepPart::save || longer < kLongerSave * own) {
        entry.late = kNobody;
      }
    }
    entry.share *= seconds / since_save_s_;
    entry.seconds = since_save_s_;
    since_save_s_ = 0.0;
    saves_.add(entry);
  } else {
    steps_.add(entry);
  }
  const bool still_saves =
      std::any_of(saves_.entries.begin(), saves_.entries.end(),
                  [&](const Entry& save) { return since_save_s_ <= kGone * save.seconds; });
  if (!still_saves) saves_ = {kSaves};
  found_ = steps_.straggler();
  const auto at_saves = saves_.straggler();
  if (at_saves && (!found_ || at_saves->share > found_->share)) found_ = at_saves;
}

// A program that moves to another thread reads another thread's waits: no part becomes negative.
void PartClock::advance() {
  const Reading now = read_();
  const int64_t all = std::max<int64_t>(0, now.now_ns - last_.now_ns);
  const int64_t peers = std::clamp<int64_t>(now.waited.peers_ns - last_.waited.peers_ns, 0, all);
  const int64_t copies =
      std::clamp<int64_t>(now.waited.copies_ns - last_.waited.copies_ns, 0, all - peers);
  const bool saves = part_ == StepPart::save;  // which copies, too
  waited_ns_ += peers;
  parts_ns_[static_cast<size_t>(saves ? StepPart::save : StepPart::copy)] += copies;
  parts_ns_[static_cast<size_t>(part_)] += all - peers - copies;
  last_ = now;
}

StepPart PartClock::enter(StepPart part) {
  advance();
  return std::exchange(part_, part);
}

StepShares PartClock::take() {
  advance();
  step_ns_ = std::max<int64_t>(1, last_.now_ns - started_.now_ns);
  started_ = last_;
  const auto whole = static_cast<double>(step_ns_);
  StepShares shares;
  shares.waited = static_cast<double>(std::exchange(waited_ns_, 0)) / whole;
  for (size_t i = 0; i < parts_ns_.size(); ++i) {
    shares.parts[i] = static_cast<double>(std::exchange(parts_ns_[i], 0)) / whole;
  }
  return shares;
}

int64_t encode_shares(const StepShares& shares) {
  const auto field = [](double share) {
    return static_cast<int64_t>(std::lround(std::clamp(share, 0.0, 1.0) * kUnit));
  };
  int64_t word = field(shares.waited);
  for (const double share : shares.parts) word = word << kBits | field(share);
  return word;
}

StepShares decode_shares(int64_t word) {
  const auto next = [&] {
    const int64_t field = word & kUnit;
    word >>= kBits;
    return static_cast<double>(field) / kUnit;
  };
  StepShares shares;
  for (size_t i = shares.parts.size(); i-- > 0;) shares.parts[i] = next();
  shares.waited = next();
  return shares;
}

StragglerWatch::StragglerWatch(Communicator& job, Device& device)
    : log_(job.rank(), job.world_size()),
      is_first_(job.rank() == 0),
      hosts_(names_of_hosts(job, device.inline_stream())),
      search_(device.is_host()) {}

void StragglerWatch::add(std::span<const int64_t> words) {
  if (!is_first_) return;
  search_.add(words, 1e-9 * static_cast<double>(clock_.step_ns()));
  if (!search_.found()) return;
  if (is_log_due()) log_.warning("{}; see docs/slow.md", report().found->text());
}

StragglerReport StragglerWatch::report() const {
  const auto& found = search_.found();
  if (!found) return {last_, std::nullopt};
  const size_t host = hosts_.size() == 1 ? 0 : static_cast<size_t>(found->rank);
  return {last_, Straggler{found->rank, hosts_[host], found->share, found->cause}};
}

}  // namespace zerorun
