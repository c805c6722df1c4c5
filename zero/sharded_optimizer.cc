#include "zero/sharded_optimizer.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace zerorun {

ShardedOptimizer::ShardedOptimizer(const EngineContext& context, std::vector<Bucket>& buckets,
                                   std::vector<Optimizer> rules, const PrecisionConfig& precision,
                                   std::unique_ptr<StateStore> store)
    : context_(context),
      buckets_(buckets),
      rules_(std::move(rules)),
      separate_master_(context.param_dtype != DType::fp32 && !precision.master_is_param),
      store_(std::move(store)) {
  for (Bucket& bucket : buckets) {
    runs_.push_back(bucket.plan.trainable ? runs_of(bucket) : std::vector<Run>{});
    if (!bucket.plan.trainable) continue;
    if (bucket.plan.use_muon) check_matrices(bucket);
    StateLayout layout;
    layout.numel = held_numel(bucket);
    if (separate_master_) layout.tensors.push_back({"master", DType::fp32});
    for (const StateSpec& spec : rule_of(bucket).states()) layout.tensors.push_back(spec);
    bucket.state_shard = store_->add(layout);
  }
  allocate_direction();
}

const Optimizer& ShardedOptimizer::rule_of(const Bucket& bucket) const {
  return bucket.plan.use_muon ? rules_.at(1) : rules_.at(0);
}

std::span<const StateSpec> ShardedOptimizer::state_specs(const Bucket& bucket) const {
  if (!bucket.plan.trainable) return {};
  return rule_of(bucket).states();
}

void ShardedOptimizer::check_matrices(const Bucket& bucket) const {
  for (const SizedParameter& parameter : bucket.plan.parameters) {
    const ParameterSpec& spec = context_.specs[static_cast<size_t>(parameter.parameter)];
    if (spec.shape.size() == 2) continue;
    fail<ConfigError>("parameter {}: use_muon is for matrices, this has {} dimensions", spec.name,
                      spec.shape.size());
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
  const Optimizer& rule = rule_of(bucket);
  // A value that covers several elements must not cover padding, whose gradient is anything.
  const bool merge = rule.passes() == Optimizer::Passes::one && !rule.rounds_stochastically() &&
                     rule.alignment() == 1;
  std::vector<Run> runs;
  for (const Interval& part : bucket.layout.intervals(from, from + held_numel(bucket))) {
    const int group = context_.specs[static_cast<size_t>(part.parameter)].group;
    const int64_t end = part.offset - from + part.numel;
    // Padding between neighbours is updated with them: longer runs cost less than the padding.
    if (merge && !runs.empty() && runs.back().group == group) {
      runs.back().end = end;
    } else {
      runs.push_back({part.offset - from, end, group, part});
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

TensorView ShardedOptimizer::part_of(const Bucket& bucket, TensorView view, size_t index,
                                     int64_t begin, int64_t numel) const {
  if (index == 0) return view.slice(begin, numel);
  const StateSpec& spec = rule_of(bucket).states()[index - 1];
  ZR_CHECK(begin % spec.block == 0, "{} cannot be cut at element {}", spec.name, begin);
  return view.slice(begin / spec.block, spec.numel(numel));
}

UpdateTensors ShardedOptimizer::tensors_of(const Bucket& bucket, std::span<const TensorView> views,
                                           const Run& run) const {
  const int64_t numel = run.end - run.begin;
  UpdateTensors tensors;
  tensors.master = views[0].slice(run.begin, numel);
  tensors.grad = bucket.reduced.slice(run.begin, numel);
  tensors.param = param_of(bucket).slice(run.begin, numel);
  tensors.parameter = run.first.parameter;
  tensors.element = run.first.begin;
  const std::span<const StateSpec> specs = rule_of(bucket).states();
  size_t states = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    const TensorView part = part_of(bucket, views[i + 1], i + 1, run.begin, numel);
    if (specs[i].block == 1) {
      tensors.states.at(states++) = part;
    } else {
      tensors.scales.at(states - 1) = part;  // of the state before it
    }
  }
  return tensors;
}

void ShardedOptimizer::update(const Bucket& bucket, const Step& step) {
  Stream& stream = context_.device.inline_stream();
  const std::vector<TensorView> views = acquire(bucket, stream);
  const Optimizer& rule = rule_of(bucket);
  for (const Run& run : runs(bucket)) {
    context_.device.update(stream, rule.scalars(step.count, step.grad_scale, step.of(run)),
                           tensors_of(bucket, views, run));
  }
  release(bucket, stream);
}

void ShardedOptimizer::step(int64_t count, float grad_scale, std::span<const ParameterGroup> groups,
                            Stream& comm_stream,
                            const std::function<void(const Bucket&)>& publish) {
  const Step step{count, grad_scale, groups};
  if (rules_.front().passes() == Optimizer::Passes::lamb) {
    lamb_step(step, comm_stream, publish);
    return;
  }
  for (const Bucket& bucket : buckets_) {
    if (!bucket.plan.trainable) continue;
    if (rule_of(bucket).passes() == Optimizer::Passes::muon) {
      muon_step(bucket, step, comm_stream);
    } else {
      update(bucket, step);
    }
    publish(bucket);
  }
}

}  // namespace zerorun
