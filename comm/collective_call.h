#pragma once

#include <cstdint>
#include <string>

#include "zerorun/communicator.h"
#include "zerorun/tensor.h"

namespace zerorun {

// The arguments of one call of a communicator. In a broadcast `in` and `out` are the same tensor; a
// barrier has no tensors.
struct CollectiveCall {
  Collective op = Collective::barrier;
  TensorView in;
  TensorView out;
  ReduceOp reduce = ReduceOp::sum;
  Output output = Output::overwrite;
  Sync sync = Sync::collective;
  int root = 0;
  uint64_t number = 0;  // of the operation that this call is a part of; 0: it is no part
  std::string label;
};

// Throws InternalError unless sizes, dtypes and overlaps of the tensors are as
// include/zerorun/communicator.h allows.
void check_call(const CollectiveCall& call, int rank, int world_size);

// Calls and bytes that CommStats counts for `call`.
CollectiveCount count_of(const CollectiveCall& call);

}  // namespace zerorun
