#include "zero/update/muon_step.h"

#include "core/check.h"

namespace zerorun {

MuonStep::MuonStep(const EngineContext& context, std::span<const Bucket> buckets,
                   ChunkStorage& storage, const UpdatePlan& plan, const DirectionMemory& direction)
    : context_(context), storage_(storage), plan_(plan), direction_(direction) {
  for (const Bucket& bucket : buckets) {
    if (!bucket.plan.use_muon) continue;
    for (const SizedParameter& parameter : bucket.plan.parameters) {
      const ParameterSpec& spec = context_.sharding.specs[static_cast<size_t>(parameter.parameter)];
      if (spec.shape.size() == 2) continue;
      fail<ConfigError>("parameter {}: use_muon is for matrices, this has {} dimensions", spec.name,
                        spec.shape.size());
    }
  }
}

void MuonStep::run(const Bucket& bucket, const StepScalars& step, const StepScalars& applied,
                   Stream& comm_stream) {
  const TensorView direction = direction_.direction(bucket.layout.padded_numel());
  const TensorView stored = direction.slice(bucket.stored.begin, bucket.stored.numel);
  find_direction(bucket, step, stored);
  if (context_.sharding.policy.shard_state) {
    comm_stream.wait(context_.device.inline_stream().record());
    context_.groups.shards(bucket.plan.ranks)
        .all_gather(stored, direction, Sync::collective, comm_stream, bucket.label);
    context_.device.inline_stream().wait(comm_stream.record());
  }
  orthogonalize(bucket, step, direction);
  apply(bucket, applied, stored);
  if (bucket.stored.offloaded) comm_stream.wait(storage_.params_stored(bucket));
}

void MuonStep::find_direction(const Bucket& bucket, const StepScalars& step, TensorView stored) {
  HostPipeline* const pipeline = storage_.pipeline();
  Stream& stream = context_.device.inline_stream();
  stream.wait(direction_read_);
  const Event read = stream.record();  // by this stream, too: the direction of the last bucket
  if (bucket.stored.offloaded) pipeline->stream().wait(bucket.grads.host_ready);
  for (const Chunk& chunk : bucket.chunks) {
    const ActiveChunk active = storage_.acquire(bucket, chunk);
    const TensorView part = stored.slice(chunk.begin, chunk.numel());
    if (chunk.on_host) {
      const TensorView staged = pipeline->outgoing(chunk.numel(), DType::fp32);
      plan_.find_direction(active, step, staged);
      stream.wait(pipeline->send(staged, part, read));
    } else {
      plan_.find_direction(active, step, part);
    }
    storage_.release(active);
  }
}

UpdateScalars MuonStep::scalars_of(const Bucket& bucket, const StepScalars& step,
                                   ParameterId parameter) const {
  const ParameterSpec& spec = context_.sharding.specs[static_cast<size_t>(parameter)];
  return storage_.rule(bucket).muon_scalars(
      step.count, step.groups[static_cast<size_t>(spec.group)], spec.shape[0], spec.shape[1]);
}

void MuonStep::orthogonalize(const Bucket& bucket, const StepScalars& step, TensorView direction) {
  const int64_t begin = bucket.stored.begin;
  for (const Interval& part : bucket.layout.intervals(begin, begin + bucket.stored.numel)) {
    const auto& shape = context_.sharding.specs[static_cast<size_t>(part.parameter)].shape;
    const TensorView matrix = direction.slice(part.offset - part.begin, shape[0] * shape[1]);
    context_.device.orthogonalize(context_.device.inline_stream(), matrix, shape[0], shape[1],
                                  storage_.rule(bucket).newton_schulz_steps(),
                                  direction_.work(orthogonalize_work(shape[0], shape[1])));
    // Here, and not in the update, where the decision of a step takes the place of this factor.
    const float scale = scalars_of(bucket, step, part.parameter).grad_scale;
    if (scale != 1.0F) context_.device.scale(context_.device.inline_stream(), matrix, scale);
  }
}

void MuonStep::apply(const Bucket& bucket, const StepScalars& step, TensorView stored) {
  HostPipeline* const pipeline = storage_.pipeline();
  const Event found = context_.device.inline_stream().record();
  const auto scalars = [&](const Optimizer& /*rule*/, const PlannedSegment& segment) {
    UpdateScalars s = scalars_of(bucket, step, segment.first.parameter);
    s.grad_scale = 1.0F;
    return s;
  };
  for (const Chunk& chunk : bucket.chunks) {
    const ActiveChunk active = storage_.acquire(bucket, chunk);
    TensorView part = stored.slice(chunk.begin, chunk.numel());
    if (chunk.on_host) part = pipeline->fetch(part, found);
    const TensorView params = storage_.open_params(active);
    UpdateTensors tensors = plan_.tensors(active, params, step);
    tensors.grad = part;
    tensors.states = {};
    active.device.update(active.stream, tensors, plan_.segments(active, scalars));
    if (chunk.on_host) pipeline->fetched();
    storage_.store(active, params);
  }
  if (bucket.stored.offloaded) direction_read_ = pipeline->received();
}

}  // namespace zerorun
