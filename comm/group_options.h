#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/job_state.h"
#include "core/log.h"
#include "zerorun/communicator.h"

namespace zerorun {

// The options of a communicator of all ranks of a job, or of a group of ranks made by split().
// `rank` and `world_size` count within the group.
struct GroupOptions : CommunicatorOptions {
  explicit GroupOptions(CommunicatorOptions options)
      : CommunicatorOptions(std::move(options)), job_size(world_size) {}

  std::string group;         // the group's name in errors; empty: all ranks of the job
  std::vector<int> numbers;  // by rank of the group: the rank in the job; empty: the same
  int job_size;
  std::shared_ptr<JobState> job = std::make_shared<JobState>();
  // Waits of a group that is being made call it about once a second. Throws CommError if a rank of
  // the communicator that is split has failed or died: it may not have come to its group yet, so
  // the group does not know it. Valid until the group is made. Null: all ranks of the job.
  std::function<void()> check_parent;

  // The rank in the job of `peer`, a rank of the group. Error messages name ranks by it.
  int number(int peer) const { return numbers.empty() ? peer : numbers[static_cast<size_t>(peer)]; }
  int own_number() const { return number(rank); }
  Logger log() const { return {own_number(), job_size}; }
};

}  // namespace zerorun
