#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "zero/groups/engine_context.h"
#include "zero/storage/chunk_storage.h"
#include "zerorun/engine.h"

namespace zerorun {

// Makes a bucket's updated shard visible to all ranks.
using GatherUpdated = std::function<void(const Bucket&)>;

// Reads and writes parameters, masters and optimizer states between steps, chunk by chunk.
class OptimizerStates {
 public:
  OptimizerStates(const EngineContext& context, std::span<const Bucket> buckets,
                  BucketMemory& memory, ChunkStorage& storage);

  // As Engine::initialize_parameters.
  void initialize(const Engine::FillFunction& fill, const GatherUpdated& gather_updated);
  // As EngineStates::state_intervals, of an owning parameter. `states`: without parameters that are
  // stored off the device.
  enum class Parts : uint8_t { states, all };
  std::vector<StateInterval> intervals(Parts parts, std::optional<ParameterId> only = std::nullopt);
  // As EngineStates::visit_states.
  void visit(StateAccess access, const EngineStates::StateVisit& visit);
  // As EngineStates::refresh_from_masters.
  void refresh_from_masters(Stream& comm_stream, const GatherUpdated& gather_updated);

 private:
  // A chunk's parameters, and its states unless it is frozen.
  struct ChunkViews {
    TensorView param;
    std::vector<TensorView> states;
  };
  // The source of initial values, and the memory that they pass through.
  struct Fill {
    const Engine::FillFunction& source;
    std::span<float> host;
    TensorView staging;
  };
  // Fills a chunk's parameters and master, which is without data when the chunk is frozen.
  void fill(const Bucket& bucket, const Chunk& chunk, TensorView master, const Fill& fill);
  StateInterval interval_of(const Bucket& bucket, const Chunk& chunk, const Interval& part,
                            const ChunkViews& views) const;
  // Visits the parts of the chunk that this rank owns.
  void visit_chunk(const Bucket& bucket, const Chunk& chunk, const ChunkViews& views,
                   const EngineStates::StateVisit& visit,
                   std::optional<ParameterId> only = std::nullopt) const;
  // True when a refresh brings all masters and states to every rank, and so all parameters: the
  // step of stage 0 reads all. An optimizer of the caller's does not.
  bool gathers_states(const Bucket& bucket) const {
    return !context_.policy.shard_state && bucket.plan.trainable &&
           !storage_.rule(bucket).is_external();
  }
  void gather_written(const ActiveChunk& active, Stream& comm_stream);
  // Casts the bucket's masters into its parameters.
  void refresh(const Bucket& bucket, Stream& comm_stream);

  const EngineContext& context_;
  const std::span<const Bucket> buckets_;
  BucketMemory& memory_;
  ChunkStorage& storage_;
};

}  // namespace zerorun
