#include "zero/timeline/part_clock.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace zerorun {

namespace {

constexpr int kBits = 12;
constexpr int64_t kUnit = (int64_t{1} << kBits) - 1;  // the word of a whole step

}  // namespace

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

}  // namespace zerorun
