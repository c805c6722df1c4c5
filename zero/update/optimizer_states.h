#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "zero/groups/engine_context.h"
#include "zero/storage/chunk_storage.h"
#include "zerorun/engine.h"

namespace zerorun {

// Gathers a bucket's updated shard so that all ranks see it.
using GatherUpdated = std::function<void(const Bucket&)>;

// Reads and writes parameters, masters and optimizer states between steps, chunk by chunk.
class OptimizerStates {
 public:
  OptimizerStates(const EngineContext& context, std::span<const Bucket> buckets,
                  ChunkStorage& storage);

  // See Engine::initialize_parameters.
  void initialize(const Engine::FillFunction& fill, const GatherUpdated& gather_updated);
  // See EngineStates::state_intervals; not for tied parameters.
  std::vector<StateInterval> intervals(std::optional<ParameterId> only) {
    return intervals(Parts::all, only);
  }
  // See EngineStates::visit_states.
  void visit(StateAccess access, const EngineStates::StateVisit& visit);
  // See EngineStates::refresh_from_masters.
  void refresh_from_masters(Stream& comm_stream, const GatherUpdated& gather_updated);
  // Lets an optimizer of the caller (a torch optimizer) update this rank's masters, with gradients
  // multiplied by `grad_scale`, in the order of the inline stream. If it throws on one rank, that
  // rank rethrows the error and all others throw one, too. Collective.
  void update_by_caller(Stream& comm_stream, float grad_scale, const Engine::ShardUpdate& update);
  // A hash of the bytes of all parameters: the sum, over all blocks of kNormBlock elements, of
  // XXH3(bytes, seed = XXH3(name) + block index). Shards are cut at multiples of a block, so each
  // rank hashes the blocks that it owns and the hashes are added. Collective. Throws CommError if
  // replicas of a parameter differ between ranks.
  uint64_t hash_parameters();

 private:
  // `states`: without parameters that are stored off the device.
  enum class Parts : uint8_t { states, all };
  std::vector<StateInterval> intervals(Parts parts, std::optional<ParameterId> only = std::nullopt);
  // A chunk's parameters, and its states unless it is frozen.
  struct ChunkViews {
    TensorView param;
    std::vector<TensorView> states;
  };
  // The function that gives initial values, and the memory that they are copied through.
  struct Fill {
    const Engine::FillFunction& source;
    std::span<float> host;
    TensorView staging;
  };
  // Fills a chunk's parameters and its master, which has no data if the chunk is frozen.
  void fill(const Bucket& bucket, const Chunk& chunk, TensorView master, const Fill& fill);
  StateInterval interval_of(const Bucket& bucket, const Chunk& chunk, const Interval& part,
                            const ChunkViews& views) const;
  // Visits the parts of the chunk that this rank owns.
  void visit_chunk(const Bucket& bucket, const Chunk& chunk, const ChunkViews& views,
                   const EngineStates::StateVisit& visit,
                   std::optional<ParameterId> only = std::nullopt) const;
  // True if a refresh gathers masters and states on every rank, and thereby parameters: at stage 0
  // the step reads all of them, unless it is the step of a caller's optimizer.
  bool gathers_states(const Bucket& bucket) const {
    return !context_.sharding.policy.shard_state && bucket.plan.trainable &&
           !storage_.rule(bucket).is_external();
  }
  void gather_written(const ActiveChunk& active, Stream& comm_stream);
  // Casts the bucket's masters to its parameters.
  void refresh(const Bucket& bucket, Stream& comm_stream);

  const EngineContext& context_;
  const std::span<const Bucket> buckets_;
  ChunkStorage& storage_;
};

}  // namespace zerorun
