#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "zero/groups/engine_context.h"
#include "zero/update/muon_step.h"
#include "zero/update/optimizer_states.h"
#include "zero/update/update_plan.h"

namespace zerorun {

// Computes Lamb's trust ratios: for each parameter, its L2 norm divided by that of its update
// direction. The sums of squares are exact, and one collective exchanges all of them, or two if
// ranks hold parts of tensors. The host waits for nothing: updates read the ratios from memory.
class TrustRatios {
 public:
  // `pipeline`: null if nothing is offloaded.
  TrustRatios(const EngineContext& context, HostPipeline* pipeline, const Optimizer& rule);
  ~TrustRatios() {
    if (pipeline_ != nullptr) pipeline_->drain();
  }

  // Forgets the sums of the last step.
  void begin();
  // Adds the intervals of a chunk that this rank owns.
  void add(const ActiveChunk& active, TensorView directions);
  // Exchanges the sums after all chunks were added. Later work of the streams that update chunks
  // sees the ratios. Collective.
  void finish(Stream& comm_stream);
  // The ratios of all parameters, in the memory of the device that updates the chunk.
  TensorView of(const Chunk& chunk) const { return chunk.on_host ? host_ratios_ : ratios_; }

 private:
  const EngineContext& context_;
  HostPipeline* const pipeline_;
  const TrustRatioLimits limits_;
  const int64_t words_;  // words of the sums of all parameters and directions
  Buffer memory_;
  Buffer host_memory_;
  TensorView sums_;  // of the device's chunks, then of the host's, if there are any
  TensorView ratios_;
  TensorView host_sums_;
  TensorView host_ratios_;
  Event sent_;  // `host_sums_` have been read
};

// The optimizer step on this rank's shards. One pass over all chunks updates masters, states and
// parameters. Lamb needs an earlier pass for its trust ratios, and matrices of Muon have their own
// update (MuonStep).
class ShardedStep {
 public:
  // Collective. Throws ConfigError that names the parameter if one does not fit its optimizer.
  ShardedStep(const EngineContext& context, std::span<const Bucket> buckets, ChunkStorage& storage,
              std::span<const Optimizer> rules);

  // Updates all chunks and calls `gather_updated` for each trainable bucket; work that it submits
  // to `comm_stream` sees the updated shard. Offloaded chunks are updated concurrently with the
  // others. Collective, on `comm_stream`.
  void run(const StepScalars& step, Stream& comm_stream, const GatherUpdated& gather_updated);

 private:
  // A step as the first pass takes it, and as the second one of Muon does, whose direction is not
  // scaled by the gradient's factor.
  struct Passes {
    StepScalars first;
    StepScalars second;
  };
  // Makes both decisions of one. If the host updates chunks, its work waits for a copy of them.
  Passes share_decision(const StepScalars& step);
  // Updates what Muon does not.
  void update_rest(const StepScalars& step, Stream& comm_stream,
                   const GatherUpdated& gather_updated);
  void update_chunk(const Bucket& bucket, const Chunk& chunk, const StepScalars& step,
                    const SegmentScalars& scalars);
  // Computes the ratios that scale the update of each parameter in Lamb.
  void find_trust_ratios(const StepScalars& step, Stream& comm_stream);

  const EngineContext& context_;
  const std::span<const Bucket> buckets_;
  ChunkStorage& storage_;
  const bool has_muon_;
  const DirectionMemory direction_;
  const UpdatePlan plan_;
  std::optional<TrustRatios> ratios_;  // of Lamb
  MuonStep muon_;
  Buffer decisions_;
  Buffer host_decisions_;
};

}  // namespace zerorun
