#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "zerorun/communicator.h"
#include "zerorun/tensor.h"

namespace zerorun {

// One call of a communicator. broadcast has its tensor as both `in` and `out`, barrier has none.
struct CollectiveCall {
  Collective op = Collective::barrier;
  TensorView in;
  TensorView out;
  ReduceOp reduce = ReduceOp::sum;
  Output output = Output::overwrite;
  Sync sync = Sync::collective;
  int root = 0;
  uint64_t number = 0;  // of the operation that this is a part of; 0: of none
  std::string label;
};

// Throws InternalError unless sizes, dtypes and overlaps are as zerorun/communicator.h allows.
void check_call(const CollectiveCall& call, int rank, int world_size);

// Runs `body`, which does the call, of a communicator that has `error` until now. A first CommError
// that is not about this call, since its cause is in another group of ranks, also says what this
// rank was in.
void run_call(const CollectiveCall& call, std::string_view error,
              const std::function<void()>& body);

// The count that CommStats adds for the call.
CollectiveCount count_of(const CollectiveCall& call);

}  // namespace zerorun
