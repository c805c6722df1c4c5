#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/slot_ring.h"
#include "offload/direct_file.h"
#include "offload/pinned_arena.h"
#include "offload/state_store.h"
#include "zero/groups/engine_context.h"
#include "zero/partition/bucket.h"

namespace zerorun {

// Parameter shards that are stored in pinned host memory or in a file (Sharding::moves_parameters).
// They are copied to the device for a gather, and back after they changed, chunk by chunk.
class OffloadedParameters {
 public:
  struct Sizes {
    size_t staging = 0;  // arena bytes of buffers between file and memory
    size_t memory = 0;   // arena bytes of chunks that are not in the file
    uint64_t file = 0;
    size_t device = 0;  // device bytes for chunks that the device updates
    size_t pinned() const { return staging + memory; }
  };
  static constexpr FilePurpose kFilePurpose = {
      .folder = "/zero_optimization/offload_param/nvme_path",
      .content = "this rank's offloaded parameters",
      .instead = "keep more of them in memory (offload_param.max_in_cpu)"};
  static Sizes sizes(const Sharding& sharding, std::span<const Bucket> buckets);

  // The arena has to be page-aligned and stays so. Throws ConfigError like DirectFile.
  OffloadedParameters(const EngineContext& context, std::span<const Bucket> buckets,
                      PinnedArena& arena);

  // Copies this rank's shard of the bucket to `shard` on the device, after the work submitted to
  // the device's inline stream. Errors of reading are thrown when the event is synchronised.
  Event fetch(const Bucket& bucket, TensorView shard);

  // Acquire and release a chunk in host memory; see StateStore::acquire and release.
  TensorView acquire(const Bucket& bucket, const Chunk& chunk, Stream& stream, Content content);
  void release(const Bucket& bucket, const Chunk& chunk, Stream& stream, bool changed);

  // outgoing() returns memory for all new values of a chunk, which `stream` of `writer` writes;
  // store() then moves them to where the chunk is stored.
  TensorView outgoing(const Bucket& bucket, const Chunk& chunk, Device& writer, Stream& stream);
  void store(const Bucket& bucket, const Chunk& chunk, Device& writer, Stream& stream);

  // See StateStore::stored and accept_changes.
  TensorView stored(const Bucket& bucket, const Chunk& chunk);
  void accept_changes();

  // Waits until no work uses the memory; ignores errors of that work.
  void drain() noexcept;

 private:
  StateStore& store_of(const Chunk& chunk) const { return chunk.param_in_file ? *file_ : *memory_; }
  Event& written(const Bucket& bucket, const Chunk& chunk) {
    return written_[static_cast<size_t>(bucket.index)][static_cast<size_t>(chunk.index)];
  }

  const EngineContext& context_;
  std::unique_ptr<StateStore> file_;
  std::unique_ptr<StateStore> memory_;
  std::vector<std::vector<Event>> written_;  // by bucket and chunk
  Event fetched_;                            // all that fetch() has submitted
  SlotRing slots_;                           // device memory for chunks that the device updates
  // Declared last, so that their work has completed before the memory it uses is freed.
  std::unique_ptr<Stream> to_device_;
  std::unique_ptr<Stream> to_host_;
};

}  // namespace zerorun
