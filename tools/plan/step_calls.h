#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "zero/memory_plan.h"
#include "zerorun/communicator.h"

namespace zerorun {

// The ranks of a collective: their number, and their distance in rank order (1: consecutive ranks).
struct CallRanks {
  int count = 1;
  int distance = 1;
};

// A collective of a step, which every rank makes within its group.
struct StepCall {
  enum class Phase : uint8_t { forward, backward, step };

  Collective op = Collective::barrier;
  CallRanks ranks;
  int64_t bytes = 0;  // bytes of the full tensor, as in CollectiveCount
  // For a reduction between hosts of CPU ranks: the bytes as sums of a host's ranks, and as
  // results.
  int64_t sums = 0;
  int64_t results = 0;
  // If it sends fewer bits: bytes of the values, in their own dtype, that a rank quantizes and
  // dequantizes for it.
  int64_t quantized = 0;
  // For Muon's directions, of which each rank has as much as the cuts say: elements of fp32.
  std::shared_ptr<const Cuts> cuts{};
  int round = -1;   // on GPUs such calls with the same number start together
  int bucket = -1;  // -1: no bucket
  Phase phase = Phase::step;
  int64_t micro_step = 0;
};

// Returns all large collectives of a step in order: gathers before use, reductions in backward, and
// gathers of updated parameters. (The norm and the barrier of a step are small.) `host_ranks` is
// the number of ranks per host.
std::vector<StepCall> step_calls(const ShardedModel& model, int host_ranks);

}  // namespace zerorun
