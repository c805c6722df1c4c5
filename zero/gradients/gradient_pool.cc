#include "zero/gradients/gradient_pool.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace zerorun {

namespace {
// One bucket fills, one is reduced, and one (tied embeddings) waits for the end of backward.
constexpr int kSlots = 3;
// One bucket is cast, one is reduced.
constexpr int kCommSlots = 2;

// The group whose ranks read each other's gradients: QuantizedReduction has one of its own.
Communicator& adds_within_host(const RankGroups& groups) {
  return groups.host_group ? *groups.host_group : groups.shards();
}
}  // namespace

GradientPool::GradientPool(Device& device, const RankGroups& groups, DType dtype,
                           int64_t slot_numel, int slots, int64_t small_numel)
    : device_(device), dtype_(dtype) {
  const int64_t numel = slot_numel * slots + small_numel;
  const size_t nbytes = static_cast<size_t>(numel) * size_of(dtype);
  // Ranks of a host add gradients where they are.
  arena_ = device.is_host() ? allocate_shared(device, adds_within_host(groups), nbytes,
                                              Sharing::per_rank, MemoryCategory::buckets)
                            : device.allocate(nbytes, MemoryCategory::buckets);
  const TensorView all = view_of(arena_, dtype, numel);
  const auto add = [&](int64_t begin, int64_t count) {
    Slot slot;
    slot.view = all.slice(begin, count);
    slots_.push_back(std::move(slot));
  };
  for (int i = 0; i < slots; ++i) add(i * slot_numel, slot_numel);
  if (small_numel > 0) add(slots * slot_numel, small_numel);
}

int GradientPool::acquire(int64_t numel) {
  Slot* found = nullptr;
  const auto before = [](const Slot& a, const Slot& b) {
    return std::tuple(!a.shared, a.view.numel, a.released) <
           std::tuple(!b.shared, b.view.numel, b.released);
  };
  for (Slot& slot : slots_) {
    if (slot.in_use || slot.view.numel < numel) continue;
    if (found == nullptr || before(slot, *found)) found = &slot;
  }
  if (found == nullptr) {
    Slot slot;
    slot.shared = false;
    slot.private_memory =
        device_.allocate(static_cast<size_t>(numel) * size_of(dtype_), MemoryCategory::buckets);
    slot.view = view_of(slot.private_memory, dtype_, numel);
    slots_.push_back(std::move(slot));
    found = &slots_.back();
  }
  device_.inline_stream().wait(found->free_after);
  found->in_use = true;
  return static_cast<int>(found - slots_.data());
}

TensorView GradientPool::view(int slot, int64_t numel) const {
  return slots_.at(static_cast<size_t>(slot)).view.slice(0, numel);
}

void GradientPool::release(int slot, Event after) {
  Slot& released = slots_.at(static_cast<size_t>(slot));
  released.in_use = false;
  released.free_after = std::move(after);
  released.released = releases_++;
}

void GradientPool::trim() {
  while (!slots_.empty() && !slots_.back().shared && !slots_.back().in_use &&
         slots_.back().free_after.ready()) {
    slots_.pop_back();
  }
}

GradientPools gradient_pools(const Sharding& sharding, std::span<const Bucket> buckets) {
  GradientPools pools;
  int trainable = 0;
  int64_t vectors = 0;
  for (const Bucket& bucket : buckets) {
    if (!bucket.plan.trainable) continue;
    ++trainable;
    pools.slot_numel = std::max(pools.slot_numel, bucket.layout.padded_numel());
    if (sharding.place.replicas() > 1) {
      pools.partial_numel = std::max(pools.partial_numel, bucket.layout.shard_numel);
    }
    if (!bucket.plan.quantized) vectors = std::max(vectors, bucket.layout.padded_numel());
  }
  if (sharding.policy.shard_grads) {
    pools.slots = std::min(kSlots, trainable);
    // Vectors that are not quantized fill a bucket beside that of the matrices.
    if (sharding.zero.quantized_gradients) pools.small_numel = vectors;
  }
  if (sharding.precision.comm_dtype != sharding.precision.param_dtype) {
    pools.comm_slots = std::min(kCommSlots, trainable);
  }
  return pools;
}

}  // namespace zerorun
