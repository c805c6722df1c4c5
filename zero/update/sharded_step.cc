#include "zero/update/sharded_step.h"

#include <utility>
#include <vector>

#include "device/staging.h"
#include "zerorun/exact_sum.h"

namespace zerorun {

namespace {

constexpr int64_t kDecisionNumel = 2;  // as Device::decide writes it

size_t nbytes_of_decisions() { return 2 * kDecisionNumel * sizeof(float); }

// The decision behind which lies the one that has no factor of the gradient.
TensorView first_of(const Buffer& decisions) {
  return view_of(decisions, DType::fp32, 2 * kDecisionNumel).slice(0, kDecisionNumel);
}
TensorView second_of(const Buffer& decisions) {
  return view_of(decisions, DType::fp32, 2 * kDecisionNumel).slice(kDecisionNumel, kDecisionNumel);
}

}  // namespace

TrustRatios::TrustRatios(const EngineContext& context, HostPipeline* pipeline,
                         const Optimizer& rule)
    : context_(context),
      pipeline_(pipeline),
      limits_(rule.trust_ratio_limits()),
      words_(2 * static_cast<int64_t>(context.sharding.specs.size()) * ExactSum::kWords) {
  Device& device = context.device;
  const auto parameters = static_cast<int64_t>(context.sharding.specs.size());
  const auto nbytes = [&](int64_t words) {
    return static_cast<size_t>(words) * sizeof(int64_t) +
           static_cast<size_t>(parameters) * sizeof(float);
  };
  const auto ratios_behind = [&](const Buffer& memory, int64_t words) {
    return TensorView{memory.data() + static_cast<size_t>(words) * sizeof(int64_t), parameters,
                      DType::fp32};
  };
  const int64_t words = pipeline == nullptr ? words_ : 2 * words_;
  memory_ = device.allocate(nbytes(words), MemoryCategory::other);
  sums_ = view_of(memory_, DType::int64, words);
  ratios_ = ratios_behind(memory_, words);
  if (pipeline == nullptr) return;
  host_memory_ = allocate_staging(device, nbytes(words_));
  host_sums_ = view_of(host_memory_, DType::int64, words_);
  host_ratios_ = ratios_behind(host_memory_, words_);
}

void TrustRatios::begin() {
  context_.device.fill(context_.device.inline_stream(), sums_, 0.0F);
  if (pipeline_ == nullptr) return;
  pipeline_->stream().wait(sent_);
  pipeline_->host().fill(pipeline_->stream(), host_sums_, 0.0F);
}

void TrustRatios::add(const ActiveChunk& active, TensorView directions) {
  const auto& [bucket, chunk, device, stream, states] = active;
  std::vector<SquaresSegment> segments;
  for (const Interval& part : bucket.owned_intervals(chunk.begin, chunk.numel())) {
    const bool replica = context_.sharding.spec(part.parameter).replica;
    if (replica && context_.groups.others.tensor != nullptr) continue;  // the first rank adds it
    segments.push_back(
        {part.offset - bucket.stored.begin - chunk.begin, part.numel, part.parameter});
  }
  const TensorView sums = chunk.on_host ? host_sums_ : sums_;
  device.sum_of_squares(stream, states[0], segments, sums.slice(0, words_ / 2));
  device.sum_of_squares(stream, directions, segments, sums.slice(words_ / 2, words_ / 2));
}

void TrustRatios::finish(Stream& comm_stream) {
  Device& device = context_.device;
  comm_stream.wait(device.inline_stream().record());
  if (pipeline_ != nullptr) {
    // After all updates of the last step, too, which read `host_ratios_`.
    comm_stream.wait(pipeline_->stream().record());
    device.upload(comm_stream, host_sums_.data, sums_.slice(words_, words_));
    sent_ = comm_stream.record();
  }
  context_.groups.comm.all_reduce(sums_, sums_, ReduceOp::sum, Output::overwrite, comm_stream,
                                  "Lamb's norms");
  if (Communicator* const tensor = context_.groups.others.tensor) {
    tensor->all_reduce(sums_, sums_, ReduceOp::sum, Output::overwrite, comm_stream,
                       "Lamb's norms of divided tensors");
  }
  device.trust_ratios(comm_stream, sums_, limits_, ratios_);
  if (pipeline_ != nullptr) device.download(comm_stream, ratios_, host_ratios_.data);
  const Event ready = comm_stream.record();
  device.inline_stream().wait(ready);
  if (pipeline_ != nullptr) pipeline_->stream().wait(ready);
}

ShardedStep::ShardedStep(const EngineContext& context, std::span<const Bucket> buckets,
                         ChunkStorage& storage, std::span<const Optimizer> rules)
    : context_(context),
      buckets_(buckets),
      storage_(storage),
      has_muon_(rules.size() > 1),
      direction_(context.device, context.groups.shards(),
                 direction_size(context.sharding, rules, buckets)),
      plan_(context.sharding, buckets, storage),
      muon_(context, buckets, storage, plan_, direction_) {
  const bool has_host = storage.pipeline() != nullptr && !context.device.is_host();
  // Not in the first step: pinning memory waits for the GPU, and so for peers.
  if (has_host) host_decisions_ = context.device.allocate_pinned(nbytes_of_decisions());
  if (!context.device.is_host()) {
    decisions_ = context.device.allocate(nbytes_of_decisions(), MemoryCategory::other);
  }
  const Optimizer& rule = rules.front();
  if (rule.passes() == Optimizer::Passes::lamb) ratios_.emplace(context, storage.pipeline(), rule);
}

ShardedStep::Passes ShardedStep::share_decision(const StepScalars& step) {
  HostPipeline* const pipeline = storage_.pipeline();
  if (pipeline == nullptr && !has_muon_) return {step, step};
  Device& device = context_.device;
  if (device.is_host()) {  // such a rank knows that the step is taken
    return {{step.count, step.groups, step.decision, step.decision}, {step.count, step.groups}};
  }
  Stream& stream = device.inline_stream();
  Passes passes{step, step};
  passes.first.decision = first_of(decisions_);
  passes.second.decision = second_of(decisions_);
  device.cast(stream, step.decision, first_of(decisions_));
  for (const int64_t i : {0, 1}) {  // whether the step is taken, which is 1, is the factor, too
    device.cast(stream, step.decision.slice(1, 1), second_of(decisions_).slice(i, 1));
  }
  if (pipeline == nullptr) return passes;
  passes.first.host_decision = first_of(host_decisions_);
  passes.second.host_decision = second_of(host_decisions_);
  stream.wait(pipeline->stream().record());  // whose work reads the decision before
  device.download(stream, view_of(decisions_, DType::fp32, 2 * kDecisionNumel),
                  host_decisions_.data());
  pipeline->stream().wait(stream.record());
  return passes;
}

void ShardedStep::run(const StepScalars& scalars_of_step, Stream& comm_stream,
                      const GatherUpdated& gather_updated) {
  const Passes passes = share_decision(scalars_of_step);
  const StepScalars& step = passes.first;
  if (ratios_) find_trust_ratios(step, comm_stream);
  bool rest = true;
  for (const MuonRound& round : muon_.rounds()) {
    muon_.start(round, step, comm_stream);
    // While directions are on their way to owners. The host would keep matrices waiting instead.
    if (storage_.pipeline() == nullptr && std::exchange(rest, false)) {
      update_rest(step, comm_stream, gather_updated);
    }
    muon_.finish(round, passes.second, comm_stream, gather_updated);
  }
  if (rest) update_rest(step, comm_stream, gather_updated);
  storage_.expect(buckets_);
  // The next gradients may come before the host has read the last ones.
  if (storage_.pipeline() != nullptr) storage_.pipeline()->hold_fetches();
}

void ShardedStep::update_rest(const StepScalars& step, Stream& comm_stream,
                              const GatherUpdated& gather_updated) {
  const auto scalars = [&](const Optimizer& rule, const PlannedSegment& segment) {
    const ParameterGroup& group = step.groups[static_cast<size_t>(segment.group)];
    return ratios_ ? rule.lamb_scalars(step.count, group) : rule.scalars(step.count, 1.0F, group);
  };
  const auto takes_one_pass = [](const Bucket& bucket) {
    return bucket.plan.trainable && !bucket.plan.use_muon;
  };
  // All of the host's chunks are enqueued before the device's, which may wait for the caller.
  std::vector<Event> stored(buckets_.size());
  for (const Bucket& bucket : buckets_) {
    if (!takes_one_pass(bucket) || !bucket.stored.offloaded) continue;
    storage_.pipeline()->stream().wait(bucket.grads.host_ready);
    for (const Chunk& chunk : bucket.chunks) {
      if (chunk.on_host) update_chunk(bucket, chunk, step, scalars);
    }
    stored[static_cast<size_t>(bucket.index)] = storage_.params_stored(bucket);
  }
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const bool reversed = context_.sharding.updates_last_first();
    const Bucket& bucket = buckets_[reversed ? buckets_.size() - 1 - i : i];
    if (!takes_one_pass(bucket)) continue;
    for (const Chunk& chunk : bucket.chunks) {
      if (!chunk.on_host) update_chunk(bucket, chunk, step, scalars);
    }
    comm_stream.wait(stored[static_cast<size_t>(bucket.index)]);
    gather_updated(bucket);
  }
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
    if (bucket.stored.offloaded) pipeline->stream().wait(bucket.grads.host_ready);
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
