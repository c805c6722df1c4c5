#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "offload/state_store.h"
#include "optim/optimizer.h"
#include "zero/bucket.h"
#include "zerorun/engine.h"

namespace zerorun {

// The optimizer states of this rank's shards and the fused step over them.
class ShardedOptimizer {
 public:
  ShardedOptimizer(const EngineContext& context, std::vector<Bucket>& buckets,
                   std::unique_ptr<Optimizer> rule, std::unique_ptr<StateStore> store);

  std::span<const std::string> state_names() const { return rule_->state_names(); }

  // One fused pass over the bucket's shard: master, moments, and the parameter in its dtype.
  void step(const Bucket& bucket, int64_t step, float grad_scale,
            std::span<const ParameterGroup> groups, Stream& stream);

  // Masters and states, each with its view; acquired until `release`. `master` first.
  std::vector<TensorView> acquire(const Bucket& bucket, Stream& stream);
  void release(const Bucket& bucket, Stream& stream);
  // First element of the bucket that this rank's states cover (0 at stage 0).
  int64_t held_from(const Bucket& bucket) const;
  // Elements of the bucket that this rank's states cover.
  int64_t held_numel(const Bucket& bucket) const;

 private:
  struct Run {  // neighbours of one parameter group
    int64_t begin = 0;
    int64_t end = 0;
    int group = 0;
  };
  std::vector<Run> runs_of(const Bucket& bucket) const;
  // Where the updated parameters of the held part go.
  TensorView param_of(const Bucket& bucket) const;

  const EngineContext& context_;
  std::unique_ptr<Optimizer> rule_;
  std::unique_ptr<StateStore> store_;
  bool separate_master_;
  std::vector<std::vector<Run>> runs_;  // by bucket
};

}  // namespace zerorun
