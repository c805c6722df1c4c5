#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "offload/host_pipeline.h"
#include "zero/groups/engine_context.h"
#include "zero/partition/bucket.h"
#include "zerorun/exact_sum.h"

namespace zerorun {

// Waits for an event that may come soon, with the caller's core: a thread that sleeps until a GPU
// wakes it goes on 50 to 100 us late. After `patience` it sleeps, too.
void synchronize_soon(const Event& event, std::chrono::microseconds patience);

// Computes the global L2 norm of the reduced gradient and whether it is finite. One collective per
// step does this and exchanges everything else that the ranks of the job agree on in a step. The
// sum of squares is exact (ExactSum), so it does not depend on stage, buckets, or how the work is
// divided among ranks.
class GradientNorm {
 public:
  explicit GradientNorm(const EngineContext& context);

  // Adds this rank's part of the bucket's reduced gradient, after the work submitted to the stream.
  // `reduced` holds elements of the stored range from `begin` on.
  void add(const Bucket& bucket, TensorView reduced, int64_t begin, Stream& stream);
  // Adds the offloaded part of the bucket's reduced gradient.
  void add_host(const Bucket& bucket, HostPipeline& pipeline);

  // Resets the sum, after the work submitted to the stream.
  void restart(Stream& stream);

  // What this rank sends to the others with the sum, instead of in collectives of its own.
  struct Votes {
    bool any = false;          // this rank had a gradient since the last step
    bool late = false;         // a gradient came after its bucket was reduced
    bool new_order = false;    // this rank proposes another order of buckets
    int64_t gather_order = 0;  // ParameterGatherer::order_hash
    int64_t shares = 0;        // StragglerWatch::end_step
  };
  struct Result {
    double norm = 0.0;  // of the sum over ranks and micro-steps
    bool finite = true;
    // True if any rank of the job voted so.
    bool any = false;
    bool late = false;
    // Votes of the ranks that have the same part of the model as this rank.
    bool new_order = false;
    bool same_gathers = true;  // all had the same gather_order
    // Votes::shares of all ranks of the job, until the next read().
    std::span<const int64_t> shares;
  };
  // start() begins the collective of a step: it adds the sums of all ranks and resets this rank's
  // sum. The device then computes the decision about the step. read() waits for the result.
  void start(Stream& stream, const Votes& votes, const StepRule& rule);
  Result read();
  // The decision about the sum that was started last, for Device::update. It is valid after the
  // work submitted to the stream.
  TensorView decision() const { return view_of(decision_, DType::fp32, 2); }

 private:
  void clear_host();
  size_t ranks() const { return static_cast<size_t>(context_.groups.job().world_size()); }
  // The intervals of `reduced` that this rank owns. `reduced` holds elements of the stored range
  // from `begin` on.
  std::vector<SquaresSegment> segments_of(const Bucket& bucket, TensorView reduced,
                                          int64_t begin) const;

  // Index of the first vote of the ranks that have this rank's part of the model.
  size_t own_votes() const {
    return kCommonVotes + kPartVotes * static_cast<size_t>(context_.groups.others.part);
  }
  // The votes for all parts of the model, then three votes for each part. The ranks' words follow.
  size_t vote_count() const {
    return kCommonVotes + kPartVotes * static_cast<size_t>(context_.groups.others.part_count);
  }
  static constexpr size_t kCommonVotes = 2;
  static constexpr size_t kPartVotes = 3;

  const EngineContext& context_;
  const bool has_host_;  // gradients may be stored on the host
  Buffer words_;
  Buffer decision_;
  Buffer found_;     // on the host: the words after the collective
  Event found_all_;  // `found_` is complete
  TensorView view_;  // words of the device, then those of the host, if any, then the votes
  TensorView sum_;   // sum over the ranks
  Buffer host_;      // words of the sum of what is on the host, if anything may be
  std::vector<int64_t> votes_;  // and the ranks' words
  Event host_done_;
};

// Finds which parameter's gradient was not finite, and on which rank. It costs a pass over the
// gradient, so it is used only while the next overflow would end the training (the loss scale
// cannot become smaller).
class GradientInspector {
 public:
  explicit GradientInspector(const EngineContext& context);

  // Examines this rank's own gradient of the bucket, before the reduction.
  void look_at(const Bucket& bucket, TensorView gradient);
  // Returns the message about the gradient that was not finite, and forgets it. Collective.
  std::string report(Stream& stream);

 private:
  struct Finding {
    ParameterId parameter = 0;
    bool nan = false;
    double largest_finite = 0.0;  // magnitude
  };
  bool is_finite(TensorView gradient);
  Finding examine(ParameterId parameter, TensorView gradient);

  const EngineContext& context_;
  Buffer words_;
  std::optional<Finding> first_;  // of the lowest parameter
};

}  // namespace zerorun
