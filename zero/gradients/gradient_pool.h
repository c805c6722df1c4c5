#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "zero/groups/engine_context.h"
#include "zero/partition/bucket.h"

namespace zerorun {

// A few flat gradient buffers that buckets share: a bucket has one from its first gradient to the
// end of its reduction. They lie in memory that peers read in place, where the transport can do
// that. When all are taken by buckets that still wait for gradients, private memory helps out: that
// costs a copy, never correctness. Other transports get ordinary memory in any case: ranks that
// take different paths through a model use different slots, and NCCL may be given registered memory
// by all ranks, at one offset, or by none.
class GradientPool {
 public:
  GradientPool(const EngineContext& context, DType dtype, int64_t slot_numel, int slots);

  struct Slot {
    TensorView view;
    Event free_after;      // the reduction that read it last
    int64_t released = 0;  // how many releases of the pool were before its last one
    bool in_use = false;
    bool shared = true;
    Buffer private_memory;
  };
  // For writing on the inline stream, which waits for the reduction that read the slot last: the
  // one that began first, so that ranks which do the same use the same slots.
  int acquire(int64_t numel);
  TensorView view(int slot, int64_t numel) const;
  void release(int slot, Event after);
  // Frees private memory whose reductions are done.
  void trim();

 private:
  const EngineContext& context_;
  const DType dtype_;
  Buffer arena_;
  std::shared_ptr<void> ledger_entry_;
  std::vector<Slot> slots_;
  int64_t releases_ = 0;
};

// Memory for the buckets that GradientReducer keeps in flight.
struct GradientPools {
  int64_t slot_numel = 0;  // of the largest bucket
  int slots = 0;           // in the parameters' dtype
  int comm_slots = 0;      // in the dtype of gradients on their way
};
GradientPools gradient_pools(const Sharding& sharding, std::span<const Bucket> buckets);

}  // namespace zerorun
