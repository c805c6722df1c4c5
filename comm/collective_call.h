#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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
  std::shared_ptr<const Cuts> cuts{};  // of an all_to_all with slices of any size
  uint64_t number = 0;  // of the operation that this call is a part of; 0: it is no part
  std::string label;
};

// The elements of the largest of the parts between consecutive cuts.
int64_t largest_part(const std::vector<int64_t>& cuts);

// Which elements ranks exchange in an all_to_all.
class Slices {
 public:
  Slices(const CollectiveCall& call, int world_size)
      : cuts_(call.cuts.get()), slice_(cuts_ != nullptr ? 0 : call.in.numel / world_size) {}

  struct Slice {
    int64_t numel;
    int64_t begin_in;   // its place in the input
    int64_t begin_out;  // and in the output
  };
  // What rank `from` gives rank `to`.
  Slice between(int from, int to) const;
  // The size of the largest of all.
  int64_t largest() const;

 private:
  const Cuts* cuts_;  // null: all slices have `slice_` elements
  int64_t slice_;
};

// Throws InternalError unless sizes, dtypes and overlaps of the tensors are as
// include/zerorun/communicator.h allows.
void check_call(const CollectiveCall& call, int rank, int world_size);

// Calls and bytes that CommStats counts for `call`.
CollectiveCount count_of(const CollectiveCall& call);

}  // namespace zerorun
