#pragma once

#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "offload/host_pipeline.h"
#include "offload/state_store.h"
#include "optim/optimizer.h"
#include "zero/groups/engine_context.h"
#include "zero/storage/bucket_memory.h"
#include "zero/storage/offloaded_parameters.h"
#include "zerorun/engine.h"

namespace zerorun {

// The rule that updates a bucket, by ParameterSpec::use_muon.
const Optimizer& rule_of(std::span<const Optimizer> rules, const Bucket& bucket);
// True when a chunk has a master beside its parameters. On the host, or where shards move, there
// are no parameters that could be their own masters.
bool keeps_master(const Sharding& sharding, const Bucket& bucket, const Chunk& chunk);
// The layouts of the states of all chunks on the host, or on the device, by Chunk::state_index.
std::vector<StateLayout> state_layouts(const Sharding& sharding, std::span<const Optimizer> rules,
                                       std::span<const Bucket> buckets, bool on_host);

// The stores that keep the states of chunks, by Chunk::on_host.
struct StateStores {
  std::unique_ptr<StateStore> device;
  std::unique_ptr<StateStore> host;  // null when nothing is offloaded
};

// A trainable chunk whose states are acquired, and who computes on it.
struct ActiveChunk {
  const Bucket& bucket;
  const Chunk& chunk;
  Device& device;
  Stream& stream;
  std::vector<TensorView> states;  // the master, then what Optimizer::states lists
};

// Brings chunks from where they are stored to who computes on them, and back: masters and states
// from a StateStore, parameters that a step has written to where they are gathered from.
class ChunkStorage {
 public:
  // `rules` as of make_optimizers; `pipeline` is null when no states are offloaded, `parameters`
  // when no shards move.
  ChunkStorage(const EngineContext& context, const BucketMemory& memory,
               std::vector<Optimizer> rules, StateStores stores, HostPipeline* pipeline,
               OffloadedParameters* parameters);

  const Optimizer& rule(const Bucket& bucket) const { return rule_of(rules_, bucket); }
  HostPipeline* pipeline() const { return pipeline_; }
  OffloadedParameters* moved_parameters() const { return parameters_; }

  ActiveChunk acquire(const Bucket& bucket, const Chunk& chunk, Content content = Content::needed);
  // `changed`: how many of the chunk's views were written, counted from the first.
  void release(const ActiveChunk& active, size_t changed = std::numeric_limits<size_t>::max());
  // Master and states where they are stored, as StateStore::stored.
  std::vector<TensorView> stored_states(const Bucket& bucket, const Chunk& chunk);
  // The part of the `index`th state that belongs to `numel` elements of the chunk from `begin` on.
  TensorView part_of(const Bucket& bucket, TensorView state, size_t index, int64_t begin,
                     int64_t numel) const;

  // Memory for a chunk's new parameters, all of which are written; close_params then takes them to
  // where they are stored.
  TensorView open_params(const ActiveChunk& active);
  void close_params(const ActiveChunk& active, TensorView params);
  // Ends a step's pass over the chunk, which has written to the states and to `params`.
  void store(const ActiveChunk& active, TensorView params);
  // The event: the parameters of the bucket's offloaded chunks that were closed so far are stored.
  Event params_stored(const Bucket& bucket);

  // The next step begins with these buckets' states: they may be read beside forward and backward.
  void expect(std::span<const Bucket> buckets);
  // As StateStore::accept_changes, parameters included.
  void accept_changes();
  // As StateStore::offload and reload, of a GPU's states.
  void offload_states();
  void reload_states() { stores_.device->reload(); }

 private:
  StateStore& store_of(const Chunk& chunk) const {
    return chunk.on_host ? *stores_.host : *stores_.device;
  }
  // With the parameters where they are their own masters.
  std::vector<TensorView> with_master(const Bucket& bucket, const Chunk& chunk,
                                      std::vector<TensorView> states) const;
  // Offloaded chunks of a GPU's rank are updated in host memory and copied to the device.
  bool sends_params(const ActiveChunk& active) const {
    return active.chunk.on_host && !context_.device.is_host();
  }

  const EngineContext& context_;
  const BucketMemory& memory_;
  const std::vector<Optimizer> rules_;
  StateStores stores_;
  HostPipeline* const pipeline_;
  OffloadedParameters* const parameters_;
};

}  // namespace zerorun
