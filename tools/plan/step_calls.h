#pragma once

#include <cstdint>
#include <vector>

#include "zero/partition/sharded_model.h"
#include "zerorun/communicator.h"

namespace zerorun {

// The ranks of one collective among all of a job: so many, and their distance in rank order.
// Neighbours are 1 apart.
struct CallRanks {
  int count = 1;
  int distance = 1;
};

// A collective that every rank makes in a step, in groups of its own.
struct StepCall {
  enum class Phase : uint8_t { forward, backward, step };

  Collective op = Collective::barrier;
  CallRanks ranks;
  int64_t bytes = 0;  // of the full tensor, as CollectiveCount's
  // The same of a reduction between hosts of CPU ranks: as sums of a host's ranks, and as results.
  int64_t sums = 0;
  int64_t results = 0;
  int bucket = -1;  // -1: of none
  Phase phase = Phase::step;
  int64_t micro_step = 0;
};

// All large collectives of a step in the order in which ranks make them: gathers before use,
// reductions in backward, and gathers of updated parameters. (A step's norm and its barrier are
// small.) `host_ranks`: neighbours on a host.
std::vector<StepCall> step_calls(const ShardedModel& model, int host_ranks);

}  // namespace zerorun
