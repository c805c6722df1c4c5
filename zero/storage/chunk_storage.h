#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "offload/host_pipeline.h"
#include "offload/state_store.h"
#include "optim/optimizer.h"
#include "zero/groups/engine_context.h"
#include "zero/partition/bucket.h"
#include "zero/storage/offloaded_parameters.h"
#include "zerorun/engine.h"

namespace zerorun {

// Muon's rule for matrices with ParameterSpec::use_muon, else the first; the only one for all.
const Optimizer& rule_of(std::span<const Optimizer> rules, bool use_muon);
// True if a chunk stores a master in addition to its parameters. Chunks on the host, and chunks of
// offloaded parameters, have masters even in fp32, because no parameters are there that could serve
// as masters.
bool keeps_master(const Sharding& sharding, const Bucket& bucket, const Chunk& chunk);
// The layouts of the states of all chunks on the host or on the device, indexed by
// Chunk::state_index.
std::vector<StateLayout> state_layouts(const Sharding& sharding, std::span<const Optimizer> rules,
                                       std::span<const Bucket> buckets, bool on_host);

// The stores of the states of chunks, selected by Chunk::on_host.
struct StateStores {
  std::unique_ptr<StateStore> device;
  std::unique_ptr<StateStore> host;  // null if nothing is offloaded
};

// A trainable chunk with acquired states, and the device and stream that compute on it.
struct ActiveChunk {
  const Bucket& bucket;
  const Chunk& chunk;
  Device& device;
  Stream& stream;
  std::vector<TensorView> states;  // the master, then those of Optimizer::states
};

// Moves chunks between where they are stored and the device that computes on them: masters and
// states from and to a StateStore, updated parameters to where they are gathered from.
class ChunkStorage {
 public:
  // `rules`: see make_optimizers. `pipeline`: null if no states are offloaded. `parameters`: null
  // if no parameters are.
  ChunkStorage(const EngineContext& context, std::vector<Optimizer> rules, StateStores stores,
               HostPipeline* pipeline, OffloadedParameters* parameters);

  const Optimizer& rule(const Bucket& bucket) const {
    return rule_of(rules_, bucket.plan.use_muon);
  }
  // Of a parameter that may be on other ranks only.
  const Optimizer& rule(const ParameterSpec& spec) const { return rule_of(rules_, spec.use_muon); }
  HostPipeline* pipeline() const { return pipeline_; }
  OffloadedParameters* moved_parameters() const { return parameters_; }

  ActiveChunk acquire(const Bucket& bucket, const Chunk& chunk, Content content = Content::needed);
  // `changed`: the number of the chunk's views, from the first on, that were written.
  void release(const ActiveChunk& active, size_t changed = std::numeric_limits<size_t>::max());
  // The master and states in place; see StateStore::stored.
  std::vector<TensorView> stored_states(const Bucket& bucket, const Chunk& chunk);
  // The part of the `index`th state that belongs to `numel` elements of the chunk from `begin` on.
  TensorView part_of(const Bucket& bucket, TensorView state, size_t index, int64_t begin,
                     int64_t numel) const;

  // The parameters of a chunk in place or, if they are offloaded, in host memory between these two
  // calls, for its inline stream.
  TensorView acquire_params(const Bucket& bucket, const Chunk& chunk, Content content);
  void release_params(const Bucket& bucket, const Chunk& chunk, bool changed);

  // open_params() returns memory for all new parameters of a chunk; close_params() moves them to
  // where they are stored.
  TensorView open_params(const ActiveChunk& active);
  void close_params(const ActiveChunk& active, TensorView params);
  // Ends the update of a chunk, which has written the states and `params`.
  void store(const ActiveChunk& active, TensorView params);
  // An event after which the parameters of the bucket's offloaded chunks that were closed so far
  // are stored.
  Event params_stored(const Bucket& bucket);

  // Announces the buckets with which the next step begins. Their states may be read during forward
  // and backward.
  void expect(std::span<const Bucket> buckets);
  // See StateStore::accept_changes; includes parameters.
  void accept_changes();
  // See StateStore::offload and reload; for the states on a GPU.
  void offload_states();
  void reload_states() { stores_.device->reload(); }

 private:
  StateStore& store_of(const Chunk& chunk) const {
    return chunk.on_host ? *stores_.host : *stores_.device;
  }
  // Adds the parameters to `states` if they are their own masters.
  std::vector<TensorView> with_master(const Bucket& bucket, const Chunk& chunk,
                                      std::vector<TensorView> states) const;
  // True for offloaded chunks on a GPU rank: they are updated in host memory, and their parameters
  // are copied to the device.
  bool sends_params(const ActiveChunk& active) const {
    return active.chunk.on_host && !context_.device.is_host();
  }

  const EngineContext& context_;
  const std::vector<Optimizer> rules_;
  StateStores stores_;
  HostPipeline* const pipeline_;
  OffloadedParameters* const parameters_;
};

// The fp32 elements that optimizers with two passes (Lamb, Muon) store between the passes, for one
// chunk or round (MuonRound) at a time.
struct DirectionSize {
  int64_t numel = 0;
  int64_t work = 0;  // workspace of Muon's orthogonalization
};
DirectionSize direction_size(const Sharding& sharding, std::span<const Optimizer> rules,
                             std::span<const Bucket> buckets);

// The memory of that size. It holds Lamb's update direction of a chunk or Muon's of a round.
class DirectionMemory {
 public:
  // Collective.
  DirectionMemory(Device& device, Communicator& shards, DirectionSize size);

  TensorView direction(int64_t numel, int64_t begin = 0) const {
    return view_of(direction_, DType::fp32, numel, static_cast<size_t>(begin) * sizeof(float));
  }
  TensorView work(int64_t numel) const { return view_of(work_, DType::fp32, numel); }

 private:
  Buffer direction_;
  Buffer work_;
};

}  // namespace zerorun
