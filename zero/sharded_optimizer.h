#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "offload/state_store.h"
#include "optim/optimizer.h"
#include "zero/bucket.h"
#include "zerorun/engine.h"

namespace zerorun {

// The optimizer states of this rank's shards and the steps over them.
class ShardedOptimizer {
 public:
  // Collective. `rules` as of make_optimizers. Throws ConfigError when a parameter does not fit its
  // rule, naming it.
  ShardedOptimizer(const EngineContext& context, std::vector<Bucket>& buckets,
                   std::vector<Optimizer> rules, const PrecisionConfig& precision,
                   std::unique_ptr<StateStore> store);

  // Updates every trainable bucket's shard (master, states, and the parameter in its dtype) and
  // calls `publish` for it. `step` counts from 1; `grad_scale` multiplies the gradient. Collective;
  // what the ranks exchange goes over `comm_stream`.
  void step(int64_t step, float grad_scale, std::span<const ParameterGroup> groups,
            Stream& comm_stream, const std::function<void(const Bucket&)>& publish);

  DType master_dtype() const { return separate_master_ ? DType::fp32 : context_.param_dtype; }
  std::span<const StateSpec> state_specs(const Bucket& bucket) const;
  // Masters and states, each with its view; acquired until `release`. `master` first.
  std::vector<TensorView> acquire(const Bucket& bucket, Stream& stream);
  void release(const Bucket& bucket, Stream& stream);
  // The part of the `index`th of these views that belongs to elements [begin, begin + numel) of the
  // held part.
  TensorView part_of(const Bucket& bucket, TensorView view, size_t index, int64_t begin,
                     int64_t numel) const;
  // First element of the bucket that this rank's states cover (0 at stage 0).
  int64_t held_from(const Bucket& bucket) const;
  // Elements of the bucket that this rank's states cover.
  int64_t held_numel(const Bucket& bucket) const;

 private:
  // Neighbours within the held part that are updated by one call.
  struct Run {
    int64_t begin = 0;
    int64_t end = 0;
    int group = 0;
    Interval first;  // what it begins with; all of it when runs are not merged
  };
  // The scalars of a step that are the same for all parameters.
  struct Step {
    int64_t count = 0;
    float grad_scale = 1.0F;
    std::span<const ParameterGroup> groups;
    const ParameterGroup& of(const Run& run) const {
      return groups[static_cast<size_t>(run.group)];
    }
  };

  const Optimizer& rule_of(const Bucket& bucket) const;
  void check_matrices(const Bucket& bucket) const;
  std::vector<Run> runs_of(const Bucket& bucket) const;
  const std::vector<Run>& runs(const Bucket& bucket) const {
    return runs_[static_cast<size_t>(bucket.index)];
  }
  // Where the updated parameters of the held part go.
  TensorView param_of(const Bucket& bucket) const;
  UpdateTensors tensors_of(const Bucket& bucket, std::span<const TensorView> views,
                           const Run& run) const;
  void update(const Bucket& bucket, const Step& step);

  // zero/two_pass_step.cc
  void allocate_direction();
  // First pass over the held part; returns its direction, which begins at element `at` of
  // direction_.
  TensorView find_direction(const Bucket& bucket, const Step& step,
                            std::span<const TensorView> views, int64_t at);
  void lamb_step(const Step& step, Stream& comm_stream,
                 const std::function<void(const Bucket&)>& publish);
  void muon_step(const Bucket& bucket, const Step& step, Stream& comm_stream);

  const EngineContext& context_;
  const std::vector<Bucket>& buckets_;
  const std::vector<Optimizer> rules_;
  const bool separate_master_;
  std::unique_ptr<StateStore> store_;
  std::vector<std::vector<Run>> runs_;  // by bucket
  // Of one bucket at a time, in fp32: Lamb's direction of the held part, Muon's of the whole.
  Buffer direction_;
  std::shared_ptr<void> ledger_;
  Buffer work_;  // of orthogonalization
};

}  // namespace zerorun
