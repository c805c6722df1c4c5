#include "zero/update/sharded_step.h"

#include <vector>

namespace zerorun {

ShardedStep::ShardedStep(const EngineContext& context, std::span<const Bucket> buckets,
                         BucketMemory& memory, ChunkStorage& storage,
                         std::span<const Optimizer> rules)
    : context_(context),
      buckets_(buckets),
      memory_(memory),
      storage_(storage),
      last_first_(context.policy.shard_state && !context.policy.shard_params &&
                  storage.pipeline() == nullptr),
      direction_(context, direction_size(context, rules, buckets)),
      plan_(context, buckets, memory, storage),
      muon_(context, buckets, memory, storage, plan_, direction_) {
  const Optimizer& rule = rules.front();
  if (rule.passes() == Optimizer::Passes::lamb) ratios_.emplace(context, storage.pipeline(), rule);
}

void ShardedStep::run(const StepScalars& step, Stream& comm_stream,
                      const GatherUpdated& gather_updated) {
  if (ratios_) find_trust_ratios(step, comm_stream);
  const auto scalars = [&](const Optimizer& rule, const PlannedSegment& segment) {
    const ParameterGroup& group = step.groups[static_cast<size_t>(segment.group)];
    return ratios_ ? rule.lamb_scalars(step.count, group)
                   : rule.scalars(step.count, step.grad_scale, group);
  };
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bucket = nth(i);
    if (!bucket.plan.use_muon) continue;
    muon_.run(bucket, step, comm_stream);
    gather_updated(bucket);
  }
  const auto takes_one_pass = [](const Bucket& bucket) {
    return bucket.plan.trainable && !bucket.plan.use_muon;
  };
  // All of the host's chunks are enqueued before the device's, which may wait for the caller.
  std::vector<Event> stored(buckets_.size());
  for (const Bucket& bucket : buckets_) {
    if (!takes_one_pass(bucket) || !bucket.stored.offloaded) continue;
    storage_.pipeline()->stream().wait(memory_.gradients(bucket).host_ready);
    for (const Chunk& chunk : bucket.chunks) {
      if (chunk.on_host) update_chunk(bucket, chunk, step, scalars);
    }
    stored[static_cast<size_t>(bucket.index)] = storage_.params_stored(bucket);
  }
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bucket = nth(i);
    if (!takes_one_pass(bucket)) continue;
    for (const Chunk& chunk : bucket.chunks) {
      if (!chunk.on_host) update_chunk(bucket, chunk, step, scalars);
    }
    comm_stream.wait(stored[static_cast<size_t>(bucket.index)]);
    gather_updated(bucket);
  }
  storage_.expect(buckets_);
}

void ShardedStep::update_chunk(const Bucket& bucket, const Chunk& chunk, const StepScalars& step,
                               const SegmentScalars& scalars) {
  const ActiveChunk active = storage_.acquire(bucket, chunk);
  const TensorView params = storage_.open_params(active);
  UpdateTensors tensors = plan_.tensors(active, params, step);
  if (ratios_) tensors.trust_ratios = ratios_->of(chunk);
  active.device.update(active.stream, tensors, plan_.segments(active, scalars));
  storage_.store(active, params);
}

void ShardedStep::find_trust_ratios(const StepScalars& step, Stream& comm_stream) {
  ratios_->begin();
  for (const Bucket& bucket : buckets_) {
    if (!bucket.plan.trainable) continue;
    HostPipeline* const pipeline = storage_.pipeline();
    if (bucket.stored.offloaded) pipeline->stream().wait(memory_.gradients(bucket).host_ready);
    for (const Chunk& chunk : bucket.chunks) {
      const ActiveChunk active = storage_.acquire(bucket, chunk);
      const TensorView direction = chunk.on_host ? pipeline->outgoing(chunk.numel(), DType::fp32)
                                                 : direction_.direction(chunk.numel());
      plan_.find_direction(active, step, direction);
      ratios_->add(active, direction);
      storage_.release(active);
    }
  }
  ratios_->finish(comm_stream);
}

}  // namespace zerorun
