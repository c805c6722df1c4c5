#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/call_ledger.h"
#include "comm/family.h"
#include "zerorun/communicator.h"

namespace zerorun {

// The options of a communicator of all ranks of a job, or of a group of them that split() makes.
struct GroupOptions : CommunicatorOptions {
  explicit GroupOptions(CommunicatorOptions options)
      : CommunicatorOptions(std::move(options)), job_size(world_size) {}

  std::string group;         // its name in errors; empty: all ranks of the job
  std::vector<int> numbers;  // of its ranks in the job; empty: the same
  int job_size;
  std::shared_ptr<Family> family = std::make_shared<Family>();
  std::shared_ptr<CallLedger> parent;  // null: of all ranks

  // A rank's number as messages have it: in the job.
  int number(int peer) const { return numbers.empty() ? peer : numbers[static_cast<size_t>(peer)]; }
  int own_number() const { return number(rank); }
};

}  // namespace zerorun
