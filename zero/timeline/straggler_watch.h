#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/log.h"
#include "core/wait_clock.h"
#include "zerorun/communicator.h"
#include "zerorun/device.h"
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

// Divides the time of the thread that calls an engine among the parts of a step and its waits.
class PartClock {
 public:
  struct Reading {
    int64_t now_ns = 0;
    WaitTimes waited;
  };
  using Read = std::function<Reading()>;

  explicit PartClock(Read read = read_this_thread)
      : read_(std::move(read)), started_(read_()), last_(started_) {}

  // Time from now on is of this part, until the next call. Returns the part of the time before.
  StepPart enter(StepPart part);
  // The shares of the time since the last call.
  StepShares take();
  // Nanoseconds between the last two calls of take().
  int64_t step_ns() const { return step_ns_; }

  static Reading read_this_thread() { return {steady_ns(), WaitClock::of_this_thread().read()}; }

 private:
  // Adds the time since the last reading to its part.
  void advance();

  const Read read_;
  Reading started_;  // the step
  Reading last_;
  StepPart part_ = StepPart::compute;
  std::array<int64_t, kStepParts> parts_ns_{};
  int64_t waited_ns_ = 0;
  int64_t step_ns_ = 0;
};

// A rank's shares as one word, with 12 bits for each: what the ranks exchange.
int64_t encode_shares(const StepShares& shares);
StepShares decode_shares(int64_t word);

// Watches how the ranks of a job spend their steps. Rank 0 looks for a straggler and names it in
// its log as long as there is one, once a minute, also if several engines of the process see it.
class StragglerWatch {
 public:
  // Collective if the ranks are on several hosts: then they exchange the hosts' names.
  StragglerWatch(Communicator& job, Device& device);

  PartClock& clock() { return clock_; }
  // Ends a step of this rank. Returns the word that tells the other ranks how it was spent.
  int64_t end_step() { return encode_shares(last_ = clock_.take()); }
  // The words of all ranks in the step that has ended.
  void add(std::span<const int64_t> words);

  StragglerReport report() const;

 private:
  const Logger log_;
  const bool is_first_;
  std::vector<std::string> hosts_;  // by rank; one if all are on one host
  PartClock clock_;
  StepShares last_;
  StragglerSearch search_;
};

}  // namespace zerorun
