#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "zero/groups/engine_context.h"
#include "zero/partition/bucket.h"

namespace zerorun {

// A few flat gradient buffers (slots) that buckets share. A bucket has a slot from its first
// gradient to the end of its reduction. If the transport supports it, slots are in memory that
// peers read in place. If all slots belong to buckets that still wait for gradients, a bucket gets
// private memory, which costs a copy.
//
// With other transports the slots are ordinary memory. In particular, they are not registered with
// NCCL: ranks that take different paths through a model use different slots, and NCCL needs
// registered memory on all ranks at the same offset, or on none.
class GradientPool {
 public:
  // `small_numel`: elements of one more slot; 0: there is none.
  GradientPool(Device& device, const RankGroups& groups, DType dtype, int64_t slot_numel, int slots,
               int64_t small_numel = 0);

  struct Slot {
    TensorView view;
    Event free_after;      // the last reduction that read it
    int64_t released = 0;  // number of its last release among all releases of the pool
    bool in_use = false;
    bool shared = true;
    Buffer private_memory;
  };
  // Returns a slot for writing on the inline stream, which waits for the last reduction that read
  // the slot. Of the smallest free slots that suffice it is the one whose reduction began first, so
  // ranks that do the same use the same slots.
  int acquire(int64_t numel);
  TensorView view(int slot, int64_t numel) const;
  void release(int slot, Event after);
  // Frees private memory whose reductions are complete.
  void trim();

 private:
  Device& device_;
  const DType dtype_;
  Buffer arena_;
  std::vector<Slot> slots_;
  int64_t releases_ = 0;
};

// Sizes of the memory for the buckets that GradientReducer has in flight.
struct GradientPools {
  int64_t slot_numel = 0;     // elements of the largest bucket
  int slots = 0;              // in the parameters' dtype
  int comm_slots = 0;         // in Precision::comm_dtype
  int64_t small_numel = 0;    // elements of one more slot in the parameters' dtype
  int64_t partial_numel = 0;  // of a shard's sum over the shard group, in Precision::partial_dtype
};
GradientPools gradient_pools(const Sharding& sharding, std::span<const Bucket> buckets);

}  // namespace zerorun
