#include "zero/update/update_plan.h"

namespace zerorun {

UpdatePlan::UpdatePlan(const Sharding& sharding, std::span<const Bucket> buckets,
                       const ChunkStorage& storage)
    : sharding_(sharding), storage_(storage) {
  for (const Bucket& bucket : buckets) {
    auto& of_bucket = segments_.emplace_back();
    if (!bucket.plan.trainable) continue;
    for (const Chunk& chunk : bucket.chunks) of_bucket.push_back(plan(bucket, chunk));
  }
}

std::vector<PlannedSegment> UpdatePlan::plan(const Bucket& bucket, const Chunk& chunk) const {
  const int64_t from = bucket.stored.begin;
  const Optimizer& rule = storage_.rule(bucket);
  // A value that covers several elements must not cover padding, whose gradient is anything.
  const bool merge = rule.passes() == Optimizer::Passes::one && !rule.rounds_stochastically() &&
                     rule.alignment() == 1;
  std::vector<PlannedSegment> segments;
  for (const Interval& part : bucket.layout.intervals(from + chunk.begin, from + chunk.end)) {
    const int group = sharding_.spec(part.parameter).group;
    const int64_t end = part.offset - from + part.numel;
    // Padding between neighbours is updated with them: longer segments cost less than the padding.
    if (merge && !segments.empty() && segments.back().group == group) {
      segments.back().end = end;
    } else {
      segments.push_back({part.offset - from, end, group, part});
    }
  }
  return segments;
}

UpdateTensors UpdatePlan::tensors(const ActiveChunk& active, TensorView params,
                                  const StepScalars& step) const {
  const auto& [bucket, chunk, device, stream, states] = active;
  UpdateTensors tensors;
  tensors.master = states[0];
  tensors.grad = bucket.reduced_part(chunk.begin, chunk.numel());
  tensors.param = sharding_.precision.master_is_param ? tensors.master : params;
  const std::span<const StateSpec> specs = storage_.rule(bucket).states();
  size_t count = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].block == 1) {
      tensors.states.at(count++) = states[i + 1];
    } else {
      tensors.scales.at(count - 1) = states[i + 1];  // of the state before it
    }
  }
  tensors.decision = chunk.on_host ? step.host_decision : step.decision;
  tensors.param_is_buffer =
      (chunk.on_host || bucket.moves_params) && tensors.param.data != tensors.master.data;
  return tensors;
}

std::vector<UpdateSegment> UpdatePlan::segments(const ActiveChunk& active,
                                                const SegmentScalars& scalars) const {
  const auto bucket = static_cast<size_t>(active.bucket.index);
  const Optimizer& rule = storage_.rule(active.bucket);
  std::vector<UpdateSegment> segments;
  for (const PlannedSegment& planned : segments_[bucket][static_cast<size_t>(active.chunk.index)]) {
    segments.push_back({.begin = planned.begin - active.chunk.begin,
                        .numel = planned.end - planned.begin,
                        .scalars = scalars(rule, planned),
                        .parameter = planned.first.parameter,
                        .element = planned.first.begin});
  }
  return segments;
}

void UpdatePlan::find_direction(const ActiveChunk& active, const StepScalars& step,
                                TensorView out) const {
  const auto scalars = [&](const Optimizer& rule, const PlannedSegment& segment) {
    return rule.scalars(step.count, 1.0F, step.groups[static_cast<size_t>(segment.group)]);
  };
  UpdateTensors written = tensors(active, out, step);
  written.param = out;
  written.param_is_buffer = false;  // a direction that nobody uses if the step is skipped
  active.device.update(active.stream, written, segments(active, scalars));
}

}  // namespace zerorun
