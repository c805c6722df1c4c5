#pragma once

#include "zero/groups/engine_context.h"
#include "zero/partition/muon_rounds.h"
#include "zero/update/optimizer_states.h"
#include "zero/update/update_plan.h"

namespace zerorun {

// Throws ConfigError, on all ranks, if their settings of Muon differ, or if a pattern of muon_heads
// matches no matrix of any. Collective over the job.
void check_muon(const OptimizerConfig& optimizer, const EngineContext& context);

// The update of matrices by Muon. The update direction is a function of the whole matrix. So ranks
// send the direction as computed from momentum to the matrices' owners (MuonRound), which
// orthogonalize it and send the parts back to the shards.
class MuonStep {
 public:
  // Throws ConfigError that names the parameter if one is not a matrix.
  MuonStep(const EngineContext& context, std::span<const Bucket> buckets, ChunkStorage& storage,
           const UpdatePlan& plan, const DirectionMemory& direction);

  std::span<const MuonRound> rounds() const { return rounds_; }

  // Collective, one round after the other. start() sends directions to owners; other work may
  // follow while they are on their way. finish() calls `gather_updated` for each bucket; work that
  // it submits to `comm_stream` sees the updated shard. `applied`: the step for the orthogonalized
  // direction, which the gradient's factor does not scale.
  void start(const MuonRound& round, const StepScalars& step, Stream& comm_stream);
  void finish(const MuonRound& round, const StepScalars& applied, Stream& comm_stream,
              const GatherUpdated& gather_updated);

 private:
  // Updates the momentum and writes the direction of the stored range to `stored`.
  void find_direction(const Bucket& bucket, const StepScalars& step, TensorView stored);
  // Orthogonalizes the owned matrices and scales them by the factor of their shape.
  void orthogonalize(const MuonShare& share, const StepScalars& step);
  enum class Way { to_owners, to_shards };
  // Enqueues the exchange of each share after the work of the inline stream so far; returns their
  // ends. They start together: a bucket may have one owner, whose link alone would be busy.
  std::vector<Event> exchange(const MuonRound& round, Way way, Stream& comm_stream);
  TensorView stored_of(const MuonShare& share) const {
    return direction_.direction(bucket_of(share).stored.numel, share.stored);
  }
  TensorView owned_of(const MuonShare& share) const {
    return direction_.direction(share.numel, share.owned);
  }
  const Bucket& bucket_of(const MuonShare& share) const {
    return buckets_[static_cast<size_t>(share.bucket)];
  }
  UpdateScalars scalars_of(const Bucket& bucket, const StepScalars& step,
                           ParameterId parameter) const;
  void apply(const Bucket& bucket, const StepScalars& step, TensorView stored);

  const EngineContext& context_;
  const std::span<const Bucket> buckets_;
  ChunkStorage& storage_;
  const UpdatePlan& plan_;
  const DirectionMemory& direction_;
  const std::vector<MuonRound> rounds_;
  std::vector<Event> arrived_;  // the directions of this round, at their owners
  Event direction_read_;        // the host has read the direction of the last bucket
};

}  // namespace zerorun
