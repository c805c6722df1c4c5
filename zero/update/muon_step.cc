#include "zero/update/muon_step.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "comm/agreement.h"
#include "core/check.h"
#include "core/joined.h"
#include "zero/partition/model_spec.h"

namespace zerorun {

namespace {

std::string described(const OptimizerConfig& optimizer) {
  const std::string heads = joined(optimizer.muon_heads, ", ", [](const auto& head) {
    return fmt::format("\"{}\": {}", head.first, head.second);
  });
  return fmt::format("ns_steps {}, ns_method \"{}\", muon_heads {{{}}}", optimizer.ns_steps,
                     optimizer.ns_method, heads);
}

// The model's parts and experts differ between ranks, what is configured does not: a pattern may
// match on some ranks only.
void check_patterns(const OptimizerConfig& optimizer, const EngineContext& context) {
  const size_t count = optimizer.muon_heads.size();
  if (count == 0) return;
  std::vector<int64_t> matched(count + 1);  // the last: of what no pattern matches
  for (const ParameterSpec& spec : context.sharding.specs) {
    matched[heads_pattern_of(spec, optimizer)] = 1;
  }
  Agreement(context.groups.job(), context.device.inline_stream())
      .reduce(std::span(matched).first(count), ReduceOp::max, "ranks agree on muon_heads");
  const auto unused = std::find(matched.begin(), matched.end() - 1, 0) - matched.begin();
  if (static_cast<size_t>(unused) == count) return;
  fail<ConfigError>(
      "optimizer.params.muon_heads: '{}' matches no matrix that Muon updates and that no pattern "
      "before it matches: the names are those of the model's parameters",
      optimizer.muon_heads[static_cast<size_t>(unused)].first);
}

}  // namespace

void check_muon(const OptimizerConfig& optimizer, const EngineContext& context) {
  const std::string text = described(optimizer);
  const auto own = static_cast<int64_t>(std::hash<std::string>()(text) >> 1);
  if (!Agreement(context.groups.job(), context.device.inline_stream()).is_same(own)) {
    fail<ConfigError>(
        "optimizer.params: ns_steps, ns_method or muon_heads differ between ranks, expected the "
        "same on all; this rank has {}",
        text);
  }
  check_patterns(optimizer, context);
}

MuonStep::MuonStep(const EngineContext& context, std::span<const Bucket> buckets,
                   ChunkStorage& storage, const UpdatePlan& plan, const DirectionMemory& direction)
    : context_(context),
      buckets_(buckets),
      storage_(storage),
      plan_(plan),
      direction_(direction),
      rounds_(muon_rounds(context.sharding, buckets)) {
  for (const Bucket& bucket : buckets) {
    if (!bucket.plan.use_muon) continue;
    for (const SizedParameter& parameter : bucket.plan.parameters) {
      const ParameterSpec& spec = context_.sharding.spec(parameter.parameter);
      if (spec.shape.size() >= 2) continue;
      fail<ConfigError>("parameter {}: use_muon is for matrices, this has {} dimensions", spec.name,
                        spec.shape.size());
    }
  }
}

void MuonStep::start(const MuonRound& round, const StepScalars& step, Stream& comm_stream) {
  for (const MuonShare& share : round.shares) {
    find_direction(bucket_of(share), step, stored_of(share));
  }
  arrived_ = exchange(round, Way::to_owners, comm_stream);
}

void MuonStep::finish(const MuonRound& round, const StepScalars& applied, Stream& comm_stream,
                      const GatherUpdated& gather_updated) {
  Stream& stream = context_.device.inline_stream();
  for (size_t i = 0; i < round.shares.size(); ++i) {
    stream.wait(arrived_[i]);
    orthogonalize(round.shares[i], applied);
  }
  const std::vector<Event> returned = exchange(round, Way::to_shards, comm_stream);
  for (size_t i = 0; i < round.shares.size(); ++i) {
    const Bucket& bucket = bucket_of(round.shares[i]);
    stream.wait(returned[i]);
    apply(bucket, applied, stored_of(round.shares[i]));
    if (bucket.stored.offloaded) comm_stream.wait(storage_.params_stored(bucket));
    gather_updated(bucket);
  }
}

std::vector<Event> MuonStep::exchange(const MuonRound& round, Way way, Stream& comm_stream) {
  std::vector<Event> ends(round.shares.size());
  if (round.shares.front().to_owners == nullptr) return ends;
  comm_stream.wait(context_.device.inline_stream().record());
  Communicator& ranks = context_.groups.shards(bucket_of(round.shares.front()).plan.ranks);
  const Event all = ranks.coalesced(comm_stream, [&] {
    for (size_t i = 0; i < ends.size(); ++i) {
      const MuonShare& share = round.shares[i];
      const TensorView stored = stored_of(share);
      const TensorView owned = owned_of(share);
      const std::string& label = bucket_of(share).label;
      ends[i] = way == Way::to_owners
                    ? ranks.redistribute(stored, owned, share.to_owners, comm_stream, label)
                    : ranks.redistribute(owned, stored, share.to_shards, comm_stream, label);
    }
  });
  for (Event& end : ends) {
    if (end.state() == nullptr) end = all;  // those that start together end together
  }
  return ends;
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
  const ParameterSpec& spec = context_.sharding.spec(parameter);
  const MuonMatrices matrices = muon_matrices(spec);
  return storage_.rule(bucket).muon_scalars(
      step.count, step.groups[static_cast<size_t>(spec.group)], matrices.rows, matrices.cols);
}

void MuonStep::orthogonalize(const MuonShare& share, const StepScalars& step) {
  const Bucket& bucket = bucket_of(share);
  const TensorView owned = owned_of(share);
  for (const Interval& part : bucket.layout.intervals(share.begin, share.begin + share.numel)) {
    const auto [count, rows, cols] = muon_matrices(context_.sharding.spec(part.parameter));
    const TensorView matrix = owned.slice(part.offset - share.begin, part.numel);
    for (int64_t i = 0; i < count; ++i) {
      context_.device.orthogonalize(context_.device.inline_stream(),
                                    matrix.slice(i * rows * cols, rows * cols), rows, cols,
                                    storage_.rule(bucket).orthogonalization(),
                                    direction_.work(orthogonalize_work(rows, cols)));
    }
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
