#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/log.h"
#include "zero/timeline/part_clock.h"
#include "zero/timeline/straggler_search.h"
#include "zerorun/communicator.h"
#include "zerorun/device.h"

namespace zerorun {

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
