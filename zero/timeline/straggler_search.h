#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "zerorun/straggler.h"

namespace zerorun {

// Finds the straggler of a job: the rank that waits least for the others, step after step, while
// they wait for it. A rank is late in a step if it waits least, and the median rank waits for at
// least kLate of the step and kLate_s longer. It is a straggler if it was late in 9 of 10 of the
// last kSteps steps, by kShare of the step in the median. Of two ranks that are late by chance
// alone, one is so in 2 of 10 million such windows. Steps with a save are rare, and their times are
// not those of other steps. So they are counted apart: of the last kSaves, a straggler is late in
// all, its own save took half as long again as the median rank's, and what the others waited for is
// kShare of the time from one save to the next.
//
// On a GPU the host waits for it wherever the program asks for a result, which counts as
// computation, and launches are hidden behind the GPU's work. So there the late rank is the one
// with the most data, copies and saves, and it is late by what it has more of them than the median
// rank, as far as that one waits longer.
class StragglerSearch {
 public:
  static constexpr size_t kSteps = 40;
  static constexpr size_t kSaves = 4;
  static constexpr double kShare = 0.05;
  static constexpr double kLate = kShare / 2;
  static constexpr double kLate_s = 1e-3;  // shorter than that a line of output takes

  explicit StragglerSearch(bool on_host = true) : on_host_(on_host) {}

  struct Found {
    int rank = 0;
    double share = 0.0;
    StepPart cause = StepPart::compute;
  };

  // Adds a step that took so long. `words`: of all ranks, from encode_shares().
  void add(std::span<const int64_t> words, double seconds);
  const std::optional<Found>& found() const { return found_; }

 private:
  static constexpr int kNobody = -1;
  // What a step said.
  struct Entry {
    int late = kNobody;
    double share = 0.0;  // of the time in `seconds`
    double seconds = 0.0;
    std::array<double, kStepParts> excess{};  // by part: the late rank's minus the median rank's
  };
  // The last `capacity` entries.
  struct Window {
    size_t capacity;
    std::vector<Entry> entries{};
    size_t next = 0;

    void add(const Entry& entry);
    std::optional<Found> straggler() const;
  };

  Entry look_at_ranks(double seconds);
  // Of the ranks, the one that may be late, and how much of the step it is.
  std::pair<const StepShares*, double> last_rank();
  // The value with `index` smaller ones, of all ranks.
  template <typename Value>
  double ranked(size_t index, const Value& value);

  const bool on_host_;
  Window steps_{kSteps};
  Window saves_{kSaves};
  double since_save_s_ = 0.0;
  std::optional<Found> found_;
  // Kept from step to step, so that none allocates.
  std::vector<StepShares> ranks_;
  std::vector<double> values_;
};

}  // namespace zerorun
