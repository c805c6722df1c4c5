#pragma once

#include <array>
#include <optional>
#include <vector>

#include "offload/host_pipeline.h"
#include "zero/groups/engine_context.h"
#include "zero/storage/bucket_memory.h"
#include "zerorun/exact_sum.h"

namespace zerorun {

// Global L2 norm of the reduced gradient and whether it is finite, with one collective for both and
// for all else that the ranks of the job have to agree on in a step. The sum is exact, so it does
// not depend on stage, buckets, or how the ranks share the work.
class GradientNorm {
 public:
  explicit GradientNorm(const EngineContext& context);

  // Adds this rank's part of the bucket's reduced gradient, after what is on the stream. `reduced`
  // holds the stored range's elements from `begin` on.
  void add(const Bucket& bucket, TensorView reduced, int64_t begin, Stream& stream);
  // The same of its offloaded part.
  void add_host(const Bucket& bucket, const BucketGradients& gradients, HostPipeline& pipeline);

  // Forgets what was added, after what is on the stream.
  void restart(Stream& stream);

  // News that this rank sends with the sum, so that it takes no collective of its own.
  struct Votes {
    bool any = false;          // a gradient came since the last step
    bool late = false;         // gradients came after their bucket had gone out
    bool new_order = false;    // buckets should go out in another order
    int64_t gather_order = 0;  // ParameterGatherer::order_hash
  };
  struct Result {
    double norm = 0.0;  // of the sum over ranks and micro-steps
    bool finite = true;
    // The votes of any rank, whichever part of the model it has.
    bool any = false;
    bool late = false;
    // Votes of the ranks that have this rank's part.
    bool new_order = false;
    bool same_gathers = true;  // all had the same gather_order
  };
  // Collective, taken in every step: adds up what the ranks have, which `read` waits for, and
  // begins the next sum. With a rule the device decides, too.
  void start(Stream& stream, const Votes& votes, const std::optional<StepRule>& rule = {});
  Result read();
  // For Device::update, after what is on the stream: the decision about the sum started last.
  TensorView decision() const { return view_of(decision_, DType::fp32, 2); }

 private:
  // This rank's parts of `reduced`, the stored range's elements from `begin` on.
  std::vector<SquaresSegment> segments_of(const Bucket& bucket, TensorView reduced,
                                          int64_t begin) const;

  // The first of the votes of the ranks with this rank's part.
  size_t own_votes() const {
    return kCommonVotes + kPartVotes * static_cast<size_t>(context_.groups.part);
  }
  // Votes of all parts of the model, then three of each part's own ranks.
  size_t vote_count() const {
    return kCommonVotes + kPartVotes * static_cast<size_t>(context_.groups.part_count);
  }
  static constexpr size_t kCommonVotes = 2;
  static constexpr size_t kPartVotes = 3;

  const EngineContext& context_;
  const bool has_host_;  // gradients may be stored on the host
  Buffer words_;
  Buffer decision_;
  Buffer found_;     // on the host: the words as they were added up
  Event found_all_;  // and the time they are there
  TensorView view_;  // of the device; behind them those of the host, if any, and the votes
  TensorView sum_;   // over the ranks
  std::array<int64_t, ExactSum::kWords> host_{};
  std::vector<int64_t> votes_;
  Event host_done_;
};

}  // namespace zerorun
