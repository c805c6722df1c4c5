// The steps of ShardedOptimizer that have to see whole parameters between two passes.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/check.h"
#include "zero/lamb_norms.h"
#include "zero/sharded_optimizer.h"
#include "zerorun/exact_sum.h"

namespace zerorun {

void ShardedOptimizer::allocate_direction() {
  const auto [numel, work] = direction_numel(context_, rules_, buckets_);
  if (numel == 0) return;
  const size_t nbytes = static_cast<size_t>(numel) * sizeof(float);
  std::optional<Buffer> direction = context_.comm.allocate(nbytes, Sharing::per_rank);
  ZR_CHECK(direction, "transport {} gives no per-rank memory", context_.comm.transport());
  ledger_ = context_.device.account(nbytes, MemoryCategory::buckets);
  direction_ = std::move(*direction);
  work_ =
      context_.device.allocate(static_cast<size_t>(work) * sizeof(float), MemoryCategory::buckets);
}

DirectionSize direction_numel(const Sharding& sharding, std::span<const Optimizer> rules,
                              std::span<const Bucket> buckets) {
  DirectionSize size;
  for (const Bucket& bucket : buckets) {
    if (!bucket.plan.trainable) continue;
    const Optimizer::Passes passes = rule_of(rules, bucket).passes();
    if (passes == Optimizer::Passes::lamb) size.numel = std::max(size.numel, bucket.stored.numel);
    if (passes != Optimizer::Passes::muon) continue;
    size.numel = std::max(size.numel, bucket.layout.padded_numel());
    for (const SizedParameter& parameter : bucket.plan.parameters) {
      const auto& shape = sharding.specs[static_cast<size_t>(parameter.parameter)].shape;
      if (shape.size() != 2) continue;  // an error elsewhere
      size.work = std::max(size.work, orthogonalize_work(shape[0], shape[1]));
    }
  }
  return size;
}

void ShardedOptimizer::find_direction(const Work& work, const Step& step, TensorView out) {
  const Optimizer& rule = rule_of(rules_, work.bucket);
  UpdateTensors tensors = tensors_of(work);
  tensors.param = out;
  update(work, tensors,
         [&](const Run& run) { return rule.scalars(step.count, step.grad_scale, step.of(run)); });
}

// Lamb scales each parameter's step by the ratio of two norms. Their sums of squares are exact, so
// they do not depend on who adds what; one collective brings those of all parameters.
void ShardedOptimizer::lamb_step(const Step& step, Stream& comm_stream, const Publish& publish) {
  LambNorms norms(context_, pipeline_);
  for (const Bucket& bucket : buckets_) {
    if (!bucket.plan.trainable) continue;
    if (bucket.stored.offloaded) pipeline_->stream().wait(memory_.gradients(bucket).host_ready);
    for (const Chunk& chunk : bucket.chunks) {
      Work work = begin(bucket, chunk);
      const TensorView direction = chunk.on_host ? pipeline_->outgoing(chunk.numel(), DType::fp32)
                                                 : view_of(direction_, DType::fp32, chunk.numel());
      find_direction(work, step, direction);
      norms.add(bucket, chunk, work.views[0], direction, work.device, work.stream);
      end(work);
    }
  }
  norms.finish(comm_stream);
  const auto scalars_of = [&](const Bucket& bucket) -> Scalars {
    const Optimizer& rule = rule_of(rules_, bucket);
    return [&](const Run& run) {
      const ParameterId id = run.first.parameter;
      return rule.lamb_scalars(step.count, step.of(run), norms.parameter(id), norms.direction(id));
    };
  };
  update_all([](const Bucket&) { return true; }, scalars_of, comm_stream, publish);
}

// Muon's direction is a function of the whole matrix: every rank gathers those of the bucket, works
// out the ones that its shard intersects, and applies its part.
void ShardedOptimizer::muon_step(const Bucket& bucket, const Step& step, Stream& comm_stream) {
  Device& device = context_.device;
  Stream& stream = device.inline_stream();
  const TensorView direction = view_of(direction_, DType::fp32, bucket.layout.padded_numel());
  const TensorView stored = direction.slice(bucket.stored.begin, bucket.stored.numel);
  stream.wait(direction_read_);  // by the bucket before
  if (bucket.stored.offloaded) pipeline_->stream().wait(memory_.gradients(bucket).host_ready);
  for (const Chunk& chunk : bucket.chunks) {
    Work work = begin(bucket, chunk);
    const TensorView part = stored.slice(chunk.begin, chunk.numel());
    if (chunk.on_host) {
      const TensorView staged = pipeline_->outgoing(chunk.numel(), DType::fp32);
      find_direction(work, step, staged);
      stream.wait(pipeline_->send(staged, part));
    } else {
      find_direction(work, step, part);
    }
    end(work);
  }
  if (context_.policy.shard_state) {
    comm_stream.wait(stream.record());
    context_.comm.all_gather(stored, direction, Sync::collective, comm_stream, bucket.label);
    comm_stream.synchronize();
  }
  const int64_t from = bucket.stored.begin;
  for (const Interval& part : bucket.layout.intervals(from, from + bucket.stored.numel)) {
    const auto& shape = context_.specs[static_cast<size_t>(part.parameter)].shape;
    const TensorView matrix = direction.slice(part.offset - part.begin, shape[0] * shape[1]);
    device.orthogonalize(stream, matrix, shape[0], shape[1],
                         rule_of(rules_, bucket).newton_schulz_steps(),
                         view_of(work_, DType::fp32, orthogonalize_work(shape[0], shape[1])));
  }
  apply_direction(bucket, step, stored);
  if (bucket.stored.offloaded) comm_stream.wait(stepped(bucket));
}

void ShardedOptimizer::apply_direction(const Bucket& bucket, const Step& step,
                                       TensorView direction) {
  const Optimizer& rule = rule_of(rules_, bucket);
  const Event found = context_.device.inline_stream().record();
  for (const Chunk& chunk : bucket.chunks) {
    Work work = begin(bucket, chunk);
    TensorView part = direction.slice(chunk.begin, chunk.numel());
    if (chunk.on_host) part = pipeline_->fetch(part, found);
    open_param(work);
    UpdateTensors tensors = tensors_of(work);
    tensors.grad = part;
    tensors.states = {};
    update(work, tensors, [&](const Run& run) {
      const auto& shape = context_.specs[static_cast<size_t>(run.first.parameter)].shape;
      return rule.muon_scalars(step.count, step.of(run), shape[0], shape[1]);
    });
    if (chunk.on_host) pipeline_->fetched();
    end(work);
  }
  if (bucket.stored.offloaded) direction_read_ = pipeline_->received();
}

}  // namespace zerorun
