#include "zero/timeline/straggler_search.h"

#include <fmt/format.h>

#include <algorithm>

#include "zero/timeline/part_clock.h"

namespace zerorun {

namespace {

constexpr double kLongerSave = 1.0 / 3.0;  // of the late rank's save: what half as long again adds
constexpr double kGone = 2.0;              // without a save for so many times their distance

StepPart largest(const std::array<double, kStepParts>& values) {
  return static_cast<StepPart>(std::max_element(values.begin(), values.end()) - values.begin());
}

}  // namespace

std::string_view name_of(StepPart part) {
  switch (part) {
    case StepPart::compute:
      return "compute";
    case StepPart::data:
      return "data";
    case StepPart::copy:
      return "copy";
    case StepPart::save:
      return "save";
  }
  return "";
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

}  // namespace zerorun
