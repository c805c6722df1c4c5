#pragma once

#include "zero/bucket.h"
#include "zerorun/exact_sum.h"

namespace zerorun {

// Global L2 norm of the reduced gradient and whether it is finite, with one collective for both.
// The sum is exact, so it does not depend on stage, buckets, or how the ranks share the work.
class GradientNorm {
 public:
  explicit GradientNorm(const EngineContext& context);

  // Adds this rank's part of the bucket's reduced gradient, after what is on the stream.
  void add(const Bucket& bucket, Stream& stream);

  // Forgets what was added, after what is on the stream.
  void restart(Stream& stream);

  struct Result {
    double norm = 0.0;  // of the sum over ranks and micro-steps
    bool finite = true;
  };
  // Collective, taken in every step; starts the next sum.
  Result finish(Stream& stream);

 private:
  const EngineContext& context_;
  Buffer words_;
  TensorView view_;
};

}  // namespace zerorun
