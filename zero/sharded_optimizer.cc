#include "zero/sharded_optimizer.h"

#include <utility>

namespace zerorun {

ShardedOptimizer::ShardedOptimizer(const EngineContext& context, std::vector<Bucket>& buckets,
                                   std::unique_ptr<Optimizer> rule,
                                   std::unique_ptr<StateStore> store)
    : context_(context),
      rule_(std::move(rule)),
      store_(std::move(store)),
      separate_master_(context.param_dtype != DType::fp32) {
  for (Bucket& bucket : buckets) {
    runs_.push_back(runs_of(bucket));
    if (!bucket.plan.trainable) continue;
    StateLayout layout;
    layout.numel = held_numel(bucket);
    if (separate_master_) layout.names.emplace_back("master");
    for (const std::string& name : rule_->state_names()) layout.names.push_back(name);
    bucket.state_shard = store_->add(layout);
  }
}

int64_t ShardedOptimizer::held_from(const Bucket& bucket) const {
  return context_.policy.shard_state ? context_.comm.rank() * bucket.layout.shard_numel : 0;
}

int64_t ShardedOptimizer::held_numel(const Bucket& bucket) const {
  return context_.policy.shard_state ? bucket.layout.shard_numel : bucket.layout.padded_numel();
}

TensorView ShardedOptimizer::param_of(const Bucket& bucket) const {
  return context_.policy.shard_state ? bucket.param_shard : bucket.param_full;
}

std::vector<ShardedOptimizer::Run> ShardedOptimizer::runs_of(const Bucket& bucket) const {
  const int64_t from = held_from(bucket);
  std::vector<Run> runs;
  for (const Interval& part : bucket.layout.intervals(from, from + held_numel(bucket))) {
    const int group = context_.specs[static_cast<size_t>(part.parameter)].group;
    const int64_t end = part.offset - from + part.numel;
    // Padding between neighbours is updated with them: longer runs cost less than the padding.
    if (!runs.empty() && runs.back().group == group) {
      runs.back().end = end;
    } else {
      runs.push_back({part.offset - from, end, group});
    }
  }
  return runs;
}

std::vector<TensorView> ShardedOptimizer::acquire(const Bucket& bucket, Stream& stream) {
  std::vector<TensorView> views = store_->acquire(bucket.state_shard, stream);
  if (!separate_master_) views.insert(views.begin(), param_of(bucket));
  return views;
}

void ShardedOptimizer::release(const Bucket& bucket, Stream& stream) {
  store_->release(bucket.state_shard, stream);
}

void ShardedOptimizer::step(const Bucket& bucket, int64_t step, float grad_scale,
                            std::span<const ParameterGroup> groups, Stream& stream) {
  const std::vector<TensorView> views = acquire(bucket, stream);
  const TensorView param = param_of(bucket);
  for (const Run& run : runs_[static_cast<size_t>(bucket.index)]) {
    const int64_t numel = run.end - run.begin;
    OptimizerSegment segment;
    segment.master = views[0].slice(run.begin, numel);
    segment.grad = bucket.reduced.slice(run.begin, numel);
    segment.param = param.slice(run.begin, numel);
    for (size_t i = 1; i < views.size(); ++i) {
      segment.states.push_back(views[i].slice(run.begin, numel));
    }
    rule_->step(context_.device, stream, step, grad_scale, groups[static_cast<size_t>(run.group)],
                segment);
  }
  release(bucket, stream);
}

}  // namespace zerorun
