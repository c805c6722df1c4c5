#pragma once

#include <array>
#include <vector>

#include "offload/host_pipeline.h"
#include "zero/bucket_memory.h"
#include "zerorun/exact_sum.h"

namespace zerorun {

// Global L2 norm of the reduced gradient and whether it is finite, with one collective for both.
// The sum is exact, so it does not depend on stage, buckets, or how the ranks share the work.
class GradientNorm {
 public:
  explicit GradientNorm(const EngineContext& context);

  // Adds this rank's part of the bucket's reduced gradient, which is at `reduced` for the elements
  // of the stored range from `begin` on, after what is on the stream.
  void add(const Bucket& bucket, TensorView reduced, int64_t begin, Stream& stream);
  // The same of its offloaded part.
  void add_host(const Bucket& bucket, const BucketGradients& gradients, HostPipeline& pipeline);

  // Forgets what was added, after what is on the stream.
  void restart(Stream& stream);

  struct Result {
    double norm = 0.0;  // of the sum over ranks and micro-steps
    bool finite = true;
  };
  // Collective, taken in every step; starts the next sum.
  Result finish(Stream& stream);

 private:
  // This rank's parts of `reduced`, which is as in `add`.
  std::vector<SquaresSegment> segments_of(const Bucket& bucket, TensorView reduced,
                                          int64_t begin) const;

  const EngineContext& context_;
  const bool has_host_;  // gradients may rest on the host
  Buffer words_;
  TensorView view_;  // of the device; behind them, room for those of the host
  std::array<int64_t, ExactSum::kWords> host_{};
  Event host_done_;
};

}  // namespace zerorun
