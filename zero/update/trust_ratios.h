#pragma once

#include <cstdint>

#include "optim/optimizer.h"
#include "zero/groups/engine_context.h"
#include "zero/storage/chunk_storage.h"

namespace zerorun {

// Computes Lamb's trust ratios: for each parameter, its L2 norm divided by that of its update
// direction. The sums of squares are exact, and one collective exchanges all of them, or two if
// ranks hold parts of tensors. The host waits for nothing: updates read the ratios from memory.
class TrustRatios {
 public:
  // `pipeline`: null if nothing is offloaded.
  TrustRatios(const EngineContext& context, HostPipeline* pipeline, const Optimizer& rule);
  TrustRatios(const TrustRatios&) = delete;
  TrustRatios& operator=(const TrustRatios&) = delete;
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

}  // namespace zerorun
