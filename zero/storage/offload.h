#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "device/slot_ring.h"
#include "offload/host_pipeline.h"
#include "offload/pinned_arena.h"
#include "offload/state_store.h"
#include "optim/optimizer.h"
#include "zero/groups/engine_context.h"
#include "zero/partition/bucket.h"
#include "zero/storage/offloaded_parameters.h"

namespace zerorun {

// Stores reduced gradients if optimizer states are offloaded. The offloaded part of each bucket is
// copied to the host during backward, so that the device holds only the buckets in flight.
// Micro-steps are accumulated where the gradients are stored, in the order in which the reduction
// would add them.
class HostGradients {
 public:
  // Places BucketGradients::host_reduced in the arena.
  HostGradients(const EngineContext& context, std::span<Bucket> buckets, PinnedArena& arena,
                HostPipeline& pipeline);

  // The memory that the bucket should be reduced to. `stream` waits until it is free.
  TensorView output(const Bucket& bucket, Output output, Stream& stream);
  // Copies the reduced gradient from there to where it is stored, or adds it, after the work on
  // `stream`. Returns an event after which `reduced` may be overwritten.
  Event take(Bucket& bucket, TensorView reduced, Output output, Stream& stream);

  // The bytes of the arena for offloaded gradients.
  static size_t host_nbytes(const Sharding& sharding, std::span<const Bucket> buckets);
  // The bytes of device memory for reductions in flight.
  static size_t device_nbytes(const Sharding& sharding, std::span<const Bucket> buckets);

 private:
  const EngineContext& context_;
  HostPipeline& pipeline_;
  SlotRing slots_;  // empty if reduction is in place
};

// The bytes that offloading takes on one rank.
struct OffloadSizes {
  HostPipeline::Staging to_host;
  HostPipeline::Staging to_device;
  size_t gradients = 0;
  size_t states = 0;         // in memory; with NVMe, their staging buffers
  uint64_t states_file = 0;  // on NVMe
  OffloadedParameters::Sizes parameters;
  // Pinned host memory.
  size_t pinned() const {
    return to_host.nbytes() + to_device.nbytes() + gradients + states + parameters.pinned();
  }
  // The pinned memory that is registered with io_uring: once for reading and once for writing.
  size_t registered() const { return 2 * ((states_file > 0 ? states : 0) + parameters.staging); }
};
OffloadSizes offload_sizes(const Sharding& sharding, std::span<const Optimizer> rules,
                           std::span<const Bucket> buckets,
                           std::span<const StateLayout> host_chunks);

// An engine's memory and services on the host. A member is null if nothing of its kind is
// offloaded.
struct Offload {
  Offload(const EngineContext& context, std::span<Bucket> buckets, const OffloadSizes& sizes,
          std::span<const StateLayout> host_chunks);

  PinnedArena arena;
  std::unique_ptr<OffloadedParameters> parameters;
  std::unique_ptr<StateStore> states;
  std::unique_ptr<HostPipeline> pipeline;
  std::unique_ptr<HostGradients> gradients;
};

// Null if nothing is offloaded. Throws ConfigError if the host does not have enough memory.
std::unique_ptr<Offload> make_offload(const EngineContext& context, std::span<Bucket> buckets,
                                      std::span<const Optimizer> rules);

}  // namespace zerorun
