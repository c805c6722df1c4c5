#include "zero/sharded_optimizer.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace zerorun {

const Optimizer& rule_of(std::span<const Optimizer> rules, const Bucket& bucket) {
  return bucket.plan.use_muon ? rules[1] : rules[0];
}

namespace {

// Neither the host nor a shard that moves has parameters that could be their own masters.
bool keeps_master(const Sharding& sharding, const Bucket& bucket, const Chunk& chunk) {
  return chunk.on_host || sharding.separate_master() || bucket.moves_params;
}

}  // namespace

std::vector<StateLayout> state_layouts(const Sharding& sharding, std::span<const Optimizer> rules,
                                       std::span<const Bucket> buckets, bool on_host) {
  std::vector<StateLayout> layouts;
  for (const Bucket& bucket : buckets) {
    if (!bucket.plan.trainable) continue;
    for (const Chunk& chunk : bucket.chunks) {
      if (chunk.on_host != on_host) continue;
      StateLayout& layout = layouts.emplace_back();
      layout.numel = chunk.numel();
      if (keeps_master(sharding, bucket, chunk)) {
        layout.tensors.push_back({"master", sharding.master_dtype()});
      }
      const auto states = rule_of(rules, bucket).states();
      layout.tensors.insert(layout.tensors.end(), states.begin(), states.end());
    }
  }
  return layouts;
}

ShardedOptimizer::ShardedOptimizer(const EngineContext& context, std::span<const Bucket> buckets,
                                   BucketMemory& memory, std::vector<Optimizer> rules,
                                   StateStores stores, HostPipeline* pipeline,
                                   OffloadedParameters* parameters)
    : context_(context),
      buckets_(buckets),
      memory_(memory),
      rules_(std::move(rules)),
      stores_(std::move(stores)),
      pipeline_(pipeline),
      parameters_(parameters) {
  for (const Bucket& bucket : buckets) {
    if (bucket.plan.trainable && bucket.plan.use_muon) check_matrices(bucket);
    auto& of_bucket = runs_.emplace_back();
    if (!bucket.plan.trainable) continue;
    for (const Chunk& chunk : bucket.chunks) of_bucket.push_back(runs_of(bucket, chunk));
  }
  allocate_direction();
}

std::span<const StateSpec> ShardedOptimizer::state_specs(const Bucket& bucket) const {
  if (!bucket.plan.trainable) return {};
  return rule_of(rules_, bucket).states();
}

void ShardedOptimizer::check_matrices(const Bucket& bucket) const {
  for (const SizedParameter& parameter : bucket.plan.parameters) {
    const ParameterSpec& spec = context_.specs[static_cast<size_t>(parameter.parameter)];
    if (spec.shape.size() == 2) continue;
    fail<ConfigError>("parameter {}: use_muon is for matrices, this has {} dimensions", spec.name,
                      spec.shape.size());
  }
}

std::vector<ShardedOptimizer::Run> ShardedOptimizer::runs_of(const Bucket& bucket,
                                                             const Chunk& chunk) const {
  const int64_t from = bucket.stored.begin;
  const Optimizer& rule = rule_of(rules_, bucket);
  // A value that covers several elements must not cover padding, whose gradient is anything.
  const bool merge = rule.passes() == Optimizer::Passes::one && !rule.rounds_stochastically() &&
                     rule.alignment() == 1;
  std::vector<Run> runs;
  for (const Interval& part : bucket.layout.intervals(from + chunk.begin, from + chunk.end)) {
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

const std::vector<ShardedOptimizer::Run>& ShardedOptimizer::runs(const Work& work) const {
  return runs_[static_cast<size_t>(work.bucket.index)][static_cast<size_t>(work.chunk.index)];
}

TensorView ShardedOptimizer::param_of(const Bucket& bucket, const Chunk& chunk) const {
  const TensorView held = context_.policy.shard_state ? memory_.parameters(bucket).shard
                                                      : memory_.parameters(bucket).full;
  return held.slice(chunk.begin, chunk.numel());
}

std::vector<TensorView> ShardedOptimizer::with_master(const Bucket& bucket, const Chunk& chunk,
                                                      std::vector<TensorView> views) const {
  if (!keeps_master(context_, bucket, chunk)) {
    views.insert(views.begin(), param_of(bucket, chunk));
  }
  return views;
}

TensorView ShardedOptimizer::part_of(const Bucket& bucket, TensorView view, size_t index,
                                     int64_t begin, int64_t numel) const {
  if (index == 0) return view.slice(begin, numel);
  const StateSpec& spec = rule_of(rules_, bucket).states()[index - 1];
  ZR_CHECK(begin % spec.block == 0, "{} cannot be cut at element {}", spec.name, begin);
  return view.slice(begin / spec.block, spec.numel(numel));
}

UpdateTensors ShardedOptimizer::tensors_of(const Work& work) const {
  UpdateTensors tensors;
  tensors.master = work.views[0];
  tensors.grad = memory_.gradients(work.bucket)
                     .reduced_part(work.bucket, work.chunk.begin, work.chunk.numel());
  tensors.param = context_.master_is_param ? tensors.master : work.param;  // a first pass has none
  const std::span<const StateSpec> specs = rule_of(rules_, work.bucket).states();
  size_t states = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].block == 1) {
      tensors.states.at(states++) = work.views[i + 1];
    } else {
      tensors.scales.at(states - 1) = work.views[i + 1];  // of the state before it
    }
  }
  return tensors;
}

void ShardedOptimizer::update(const Work& work, const UpdateTensors& tensors,
                              const Scalars& scalars) const {
  std::vector<UpdateSegment> segments;
  for (const Run& run : runs(work)) {
    segments.push_back({.begin = run.begin - work.chunk.begin,
                        .numel = run.end - run.begin,
                        .scalars = scalars(run),
                        .parameter = run.first.parameter,
                        .element = run.first.begin});
  }
  work.device.update(work.stream, tensors, segments);
}

ShardedOptimizer::Work ShardedOptimizer::begin(const Bucket& bucket, const Chunk& chunk,
                                               Content content) {
  Device& device = chunk.on_host ? pipeline_->host() : context_.device;
  Stream& stream = chunk.on_host ? pipeline_->stream() : device.inline_stream();
  return {bucket,
          chunk,
          device,
          stream,
          with_master(bucket, chunk, store_of(chunk).acquire(chunk.state_index, stream, content)),
          {}};
}

void ShardedOptimizer::open_param(Work& work) {
  if (!work.bucket.moves_params) {
    work.param = parameters_->outgoing(work.bucket, work.chunk, work.device, work.stream);
  } else if (work.chunk.on_host && !context_.device.is_host()) {
    work.param = pipeline_->outgoing(work.chunk.numel(), context_.param_dtype);
  } else {
    work.param = param_of(work.bucket, work.chunk);
  }
}

void ShardedOptimizer::close_param(Work& work) {
  if (!work.bucket.moves_params) {
    parameters_->store(work.bucket, work.chunk, work.device, work.stream);
  } else if (work.chunk.on_host && !context_.device.is_host()) {
    pipeline_->send(work.param, param_of(work.bucket, work.chunk));
  }
}

Event ShardedOptimizer::stepped(const Bucket& bucket) {
  const bool sends = !bucket.moves_params && !context_.device.is_host();
  return sends ? pipeline_->sent() : pipeline_->stream().record();
}

void ShardedOptimizer::end(Work& work) {
  if (work.param.data != nullptr) {
    if (context_.master_is_param && keeps_master(context_, work.bucket, work.chunk)) {
      work.device.cast(work.stream, work.views[0], work.param);
    }
    close_param(work);
  }
  store_of(work.chunk).release(work.chunk.state_index, work.stream);
}

void ShardedOptimizer::update(const Bucket& bucket, bool on_host, const Scalars& scalars) {
  for (const Chunk& chunk : bucket.chunks) {
    if (chunk.on_host != on_host) continue;
    Work work = begin(bucket, chunk);
    open_param(work);
    update(work, tensors_of(work), scalars);
    end(work);
  }
}

void ShardedOptimizer::update_all(const std::function<bool(const Bucket&)>& wanted,
                                  const std::function<Scalars(const Bucket&)>& scalars_of,
                                  Stream& comm_stream, const Publish& publish) {
  std::vector<Event> on_host(buckets_.size());
  for (const Bucket& bucket : buckets_) {
    if (!bucket.plan.trainable || !wanted(bucket) || !bucket.stored.offloaded) continue;
    pipeline_->stream().wait(memory_.gradients(bucket).host_ready);
    update(bucket, true, scalars_of(bucket));
    on_host[static_cast<size_t>(bucket.index)] = stepped(bucket);
  }
  for (const Bucket& bucket : buckets_) {
    if (!bucket.plan.trainable || !wanted(bucket)) continue;
    update(bucket, false, scalars_of(bucket));
    comm_stream.wait(on_host[static_cast<size_t>(bucket.index)]);
    publish(bucket);
  }
}

void ShardedOptimizer::step(int64_t count, float grad_scale, std::span<const ParameterGroup> groups,
                            Stream& comm_stream, const Publish& publish) {
  const Step step{count, grad_scale, groups};
  if (rules_.front().passes() == Optimizer::Passes::lamb) {
    lamb_step(step, comm_stream, publish);
    expect_next_step();
    return;
  }
  const auto is_muon = [&](const Bucket& bucket) {
    return rule_of(rules_, bucket).passes() == Optimizer::Passes::muon;
  };
  const auto scalars_of = [&](const Bucket& bucket) -> Scalars {
    const Optimizer& rule = rule_of(rules_, bucket);
    return [&rule, &step](const Run& run) {
      return rule.scalars(step.count, step.grad_scale, step.of(run));
    };
  };
  for (const Bucket& bucket : buckets_) {
    if (!bucket.plan.trainable || !is_muon(bucket)) continue;
    muon_step(bucket, step, comm_stream);
    publish(bucket);
  }
  update_all([&](const Bucket& bucket) { return !is_muon(bucket); }, scalars_of, comm_stream,
             publish);
  expect_next_step();
}

void ShardedOptimizer::expect_next_step() {
  if (!stores_.host) return;
  std::vector<int> chunks;
  for (const bool muon : {true, false}) {
    for (const Bucket& bucket : buckets_) {
      for (const Chunk& chunk : bucket.chunks) {
        if (chunk.on_host && bucket.plan.use_muon == muon) chunks.push_back(chunk.state_index);
      }
    }
  }
  stores_.host->expect(chunks);
}

}  // namespace zerorun
