#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "offload/direct_file.h"
#include "offload/pinned_arena.h"
#include "offload/state_store.h"
#include "zero/bucket.h"

namespace zerorun {

// Shards of parameters that rest in pinned host memory or in a file (Sharding::moves_parameters),
// chunk by chunk: they come to the device when they are gathered, and go back when they changed.
class OffloadedParameters {
 public:
  struct Sizes {
    size_t staging = 0;  // of the arena, between file and memory
    size_t memory = 0;   // of the arena, where chunks rest
    uint64_t file = 0;
    size_t device = 0;  // of the device, for chunks that it updates
    size_t pinned() const { return staging + memory; }
  };
  static constexpr FilePurpose kFilePurpose = {
      .folder = "/zero_optimization/offload_param/nvme_path",
      .content = "this rank's offloaded parameters",
      .instead = "keep more of them in memory (offload_param.max_in_cpu)"};
  static Sizes sizes(const Sharding& sharding, std::span<const Bucket> buckets);

  // `arena` must be page-aligned where it goes on, and is where this ends. Throws ConfigError as
  // DirectFile.
  OffloadedParameters(const EngineContext& context, std::span<const Bucket> buckets,
                      PinnedArena& arena);

  // This rank's shard of the bucket to `shard`, on the device, after all that its inline stream was
  // given so far. Errors of reading show when the event is synchronised.
  Event fetch(const Bucket& bucket, TensorView shard);

  // A chunk where it rests, or on its way there: as StateStore, in host memory.
  TensorView acquire(const Bucket& bucket, const Chunk& chunk, Stream& stream, Content content);
  void release(const Bucket& bucket, const Chunk& chunk, Stream& stream, bool changed);

  // Where `stream` of `writer` writes all of a chunk's new values; the next call takes them there.
  TensorView outgoing(const Bucket& bucket, const Chunk& chunk, Device& writer, Stream& stream);
  void store(const Bucket& bucket, const Chunk& chunk, Device& writer, Stream& stream);

  // As StateStore::rest and accept_changes.
  TensorView rest(const Bucket& bucket, const Chunk& chunk);
  void accept_changes();

  // Before memory goes that its work uses, whatever has become of it.
  void drain() noexcept;

 private:
  // Device memory that a chunk is updated in.
  struct Slot {
    Buffer memory;
    Event free;
  };

  StateStore& store_of(const Chunk& chunk) const { return chunk.param_in_file ? *file_ : *memory_; }
  Event& written(const Bucket& bucket, const Chunk& chunk) {
    return written_[static_cast<size_t>(bucket.index)][static_cast<size_t>(chunk.index)];
  }

  const EngineContext& context_;
  std::unique_ptr<StateStore> file_;
  std::unique_ptr<StateStore> memory_;
  std::vector<std::vector<Event>> written_;  // by bucket and chunk
  std::array<Slot, 2> slots_;
  size_t current_ = 0;
  // Last, so that their work is done before what it uses goes.
  std::unique_ptr<Stream> up_;
  std::unique_ptr<Stream> down_;
};

}  // namespace zerorun
