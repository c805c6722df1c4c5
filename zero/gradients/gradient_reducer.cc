#include "zero/gradients/gradient_reducer.h"

#include <utility>

#include "comm/agreement.h"

namespace zerorun {

GradientReducer::GradientReducer(const EngineContext& context, Buckets& buckets,
                                 const StepDecider& decider, Stream& stream, Offload* offload)
    : context_(context),
      buckets_(buckets),
      batch_(context.sharding, buckets),
      decider_(decider),
      norm_(context),
      inspector_(context),
      stream_(stream),
      offload_(offload) {
  const GradientPools pools = gradient_pools(context.sharding, buckets);
  if (context.groups.cross_group) quantized_.emplace(context, buckets);
  const TensorView partial{nullptr, pools.partial_numel, context.sharding.precision.partial_dtype};
  if (!partial.empty()) {
    partial_ = context.device.allocate(partial.nbytes(), MemoryCategory::buckets);
  }
  if (pools.slots > 0)
    pool_.emplace(context.device, context.groups, context.sharding.precision.param_dtype,
                  pools.slot_numel, pools.slots, pools.small_numel);
  if (pools.comm_slots > 0) {
    comm_pool_.emplace(context.device, context.groups, context.sharding.precision.comm_dtype,
                       pools.slot_numel, pools.comm_slots);
  }
}

GradientView GradientReducer::gradient(ParameterId parameter) {
  batch_.place_of(parameter);  // not frozen
  begin_round();
  const bool accumulate = batch_.write(parameter);
  return {place(parameter), accumulate};
}

void GradientReducer::add(std::span<const Contribution> gradients) {
  for (const Contribution& one : gradients) batch_.place_of(one.parameter);  // not frozen
  begin_round();
  std::vector<TensorCopy> copies;
  copies.reserve(gradients.size());
  for (const auto& [parameter, gradient] : gradients) {
    const GradientView target = place_contribution(parameter);
    copies.push_back({gradient, target.view, target.accumulate});
  }
  context_.device.copy(context_.device.inline_stream(), copies);
}

GradientView GradientReducer::place_contribution(ParameterId parameter) {
  const int64_t numel = batch_.place_of(parameter).numel;
  if (!batch_.is_late(parameter)) {
    return {place(parameter), batch_.add(parameter)};  // in this order: there may be no memory
  }
  const DType dtype = context_.sharding.precision.param_dtype;
  const auto found = late_.gradients.find(parameter);
  if (found != late_.gradients.end()) return {view_of(found->second, dtype, numel), true};
  Buffer late = context_.device.allocate(static_cast<size_t>(numel) * size_of(dtype),
                                         MemoryCategory::buckets);
  const auto [added, is_new] = late_.gradients.emplace(parameter, std::move(late));
  return {view_of(added->second, dtype, numel), false};
}

void GradientReducer::reduce(Bucket& bucket) {
  BucketGradients& gradients = bucket.grads;
  gradients.state = BucketGradients::State::reduced;
  if (decider_.next_overflow_is_fatal()) inspector_.look_at(bucket, gradients.filled);
  const TensorView outgoing = prepare(gradients);
  stream_.wait(context_.device.inline_stream().record());
  Output output = batch_.is_first_reduction() ? Output::overwrite : Output::accumulate;
  TensorView reduced = gradients.reduced;
  if (bucket.stored.offloaded) {
    reduced = offload_->gradients->output(bucket, output, stream_);
    output = Output::overwrite;  // it is added to the sum where that is stored
  } else if (gradients.earlier) {
    reduced = earlier_sum(bucket);
  }
  Communicator& all = context_.groups.all(bucket.plan.ranks);
  if (quantized_ && bucket.plan.quantized) {
    gradients.done = quantized_->run(bucket, outgoing, reduced, output, stream_);
  } else if (context_.groups.replica_group) {
    gradients.done = reduce_in_groups(bucket, outgoing, reduced, output);
  } else if (context_.sharding.policy.shard_state) {
    gradients.done = all.reduce_scatter(outgoing, reduced, output, stream_, bucket.label);
  } else {
    gradients.done =
        all.all_reduce(outgoing, reduced, ReduceOp::sum, output, stream_, bucket.label);
  }
  if (pool_) pool_->release(gradients.slot, gradients.done);
  if (comm_pool_) comm_pool_->release(gradients.comm_slot, gradients.done);
  const Event stored = store(bucket, reduced);
  if (reduces_in_place(context_.sharding)) gradients.done = stored;
}

Event GradientReducer::reduce_in_groups(const Bucket& bucket, TensorView outgoing,
                                        TensorView reduced, Output output) {
  const std::string& label = bucket.label;
  Communicator& replicas = *context_.groups.replica_group;
  const TensorView partial =
      view_of(partial_, context_.sharding.precision.partial_dtype, reduced.numel);
  context_.groups.shard_group->reduce_scatter(outgoing, partial, Output::overwrite, stream_, label);
  if (reduced.dtype == DType::fp32 || reduced.dtype == partial.dtype) {
    return replicas.all_reduce(partial, reduced, ReduceOp::sum, output, stream_, label);
  }
  replicas.all_reduce(partial, partial, ReduceOp::sum, Output::overwrite, stream_, label);
  if (output == Output::accumulate) {
    context_.device.add(stream_, partial, reduced);
  } else {
    context_.device.cast(stream_, partial, reduced);
  }
  return stream_.record();
}

Event GradientReducer::store(Bucket& bucket, TensorView reduced) {
  BucketGradients& gradients = bucket.grads;
  const bool first = batch_.is_first_reduction();
  const bool last = batch_.is_last();
  sum_.in_norm |= last;
  sum_.in_place = true;
  if (gradients.earlier) {  // the sum, or the part of it that stays on the device, goes back
    const TensorView sum = earlier_sum(bucket);
    context_.device.cast(stream_, sum, gradients.reduced.slice(0, sum.numel));
  }
  if (!bucket.stored.offloaded) {
    if (last) norm_.add(bucket, reduced, 0, stream_);
    return stream_.record();
  }
  if (last && first) norm_.add(bucket, reduced, 0, stream_);  // the sum is what was just reduced
  Event taken = offload_->gradients->take(bucket, reduced,
                                          first ? Output::overwrite : Output::accumulate, stream_);
  if (last && !first) add_stored(bucket);
  return taken;
}

void GradientReducer::add_stored(const Bucket& bucket) {
  const TensorView reduced = bucket.grads.reduced;
  if (!bucket.stored.offloaded) {
    norm_.add(bucket, reduced, 0, stream_);
    return;
  }
  norm_.add(bucket, reduced.slice(0, bucket.stored.host_from), 0, stream_);
  norm_.add_host(bucket, *offload_->pipeline);
}

TensorView GradientReducer::whole(ParameterId parameter) {
  wait();
  const ParameterPlace& place = batch_.place_of(parameter);
  const Bucket& bucket = buckets_[place.bucket];
  const bool is_whole = !context_.sharding.policy.shard_state && !bucket.stored.offloaded;
  return is_whole ? bucket.grads.reduced.slice(place.offset, place.numel) : TensorView{};
}

void GradientReducer::measure() {
  wait();
  if (!sum_.in_norm) return;  // the batch's last micro-step will
  stream_.wait(context_.device.inline_stream().record());
  norm_.restart(stream_);
  for (const int index : batch_.schedule().order()) add_stored(buckets_[index]);
}

void GradientReducer::reduce_rest() {
  begin_round();
  while (Bucket* const bucket = batch_.pop_next()) {
    if (bucket->grads.state == BucketGradients::State::empty) open(*bucket);
    fill_missing(*bucket);
    reduce(*bucket);
  }
  batch_.close();
  late_.agreed = false;
}

void GradientReducer::reduce_late_now() {
  const BatchPhase phase = batch_.phase();
  const bool is_closed = phase == BatchPhase::reduced || phase == BatchPhase::step_due;
  if (!is_closed || late_.agreed) return;
  const int64_t own = late_.gradients.empty() ? 0 : 1;
  if (Agreement(context_.groups.comm, stream_).reduce(own, ReduceOp::max, "late gradients") > 0) {
    reduce_late();
    wait();
    if (phase == BatchPhase::step_due) batch_.end();
  }
  late_.agreed = true;
}

GradientNorm::Result GradientReducer::finish(int64_t gather_order, int64_t shares,
                                             const SubmitUpdate& submit_update) {
  GradientNorm::Votes votes = {
      .any = batch_.has_gradient(),
      .late = !late_.gradients.empty(),
      .new_order = context_.sharding.place.rank == 0 && batch_.schedule().wants_change(),
      .gather_order = gather_order,
      .shares = shares};
  while (true) {
    norm_.start(stream_, votes, decider_.rule());
    if (submit_update) submit_update();
    const GradientNorm::Result result = norm_.read();
    if (!result.late) {
      end_batch(result.new_order);
      return result;
    }
    sum_.in_norm = false;
    reduce_late();
    wait();
    votes.late = false;
  }
}

void GradientReducer::reduce_late() {
  begin_round();
  const std::map<ParameterId, Buffer> late = std::exchange(late_.gradients, {});
  std::vector<Contribution> gradients;
  for (const auto& [parameter, memory] : late) {
    const int64_t numel = batch_.place_of(parameter).numel;
    gradients.push_back(
        {parameter, view_of(memory, context_.sharding.precision.param_dtype, numel)});
  }
  add(gradients);
  context_.device.inline_stream().synchronize();  // `late` ends here
  reduce_rest();
}

void GradientReducer::drop() {
  wait();
  norm_.restart(stream_);
  late_.gradients.clear();
  end_batch(false);
}

void GradientReducer::end_batch(bool new_order) {
  std::vector<int64_t> order;
  if (new_order) {
    order = batch_.schedule().proposal();
    order.resize(batch_.schedule().order().size());  // ranks but 0 may have none
    context_.groups.comm.broadcast(view_of(std::span(order)), 0, stream_, "order of buckets")
        .synchronize();
  }
  batch_.end_batch(order);
  if (quantized_) quantized_->end_batch(stream_);
  for (Bucket& bucket : buckets_) bucket.grads.earlier = {};
  sum_.in_place = sum_.in_norm = false;
}

void GradientReducer::wait() {
  for (const Bucket& bucket : buckets_) {
    bucket.grads.done.synchronize();
    bucket.grads.host_ready.synchronize();
  }
  trim();
}

void GradientReducer::trim() {
  if (pool_) pool_->trim();
  if (comm_pool_) comm_pool_->trim();
}

void GradientReducer::begin_round() {
  if (batch_.phase() == BatchPhase::open) return;
  const bool moves = reduces_in_place(context_.sharding) && sum_.in_place;
  if (moves) allocate_earlier_sums();
  batch_.open();
  if (std::exchange(sum_.in_norm, false)) norm_.restart(stream_);
  if (moves) move_earlier_sums();
}

// Before anything changes: without memory for one of them the batch is as it was.
void GradientReducer::allocate_earlier_sums() {
  for (const int index : batch_.schedule().order()) {  // not frozen
    Bucket& bucket = buckets_[index];
    const TensorView shape{nullptr, bucket.stored.host_from,
                           context_.sharding.precision.accum_dtype};
    Buffer& earlier = bucket.grads.earlier;
    if (!earlier) earlier = context_.device.allocate(shape.nbytes(), MemoryCategory::buckets);
  }
}

void GradientReducer::move_earlier_sums() {
  sum_.in_place = false;
  Device& device = context_.device;
  for (const int index : batch_.schedule().order()) {
    const Bucket& bucket = buckets_[index];
    Stream& stream = device.inline_stream();
    stream.wait(bucket.grads.done);
    const TensorView sum = earlier_sum(bucket);
    device.cast(stream, bucket.grads.reduced.slice(0, sum.numel), sum);
  }
}

TensorView GradientReducer::earlier_sum(const Bucket& bucket) const {
  return view_of(bucket.grads.earlier, context_.sharding.precision.accum_dtype,
                 bucket.stored.host_from);
}

TensorView GradientReducer::place(ParameterId parameter) {
  const ParameterPlace& place = batch_.place_of(parameter);
  Bucket& bucket = buckets_[place.bucket];
  if (bucket.grads.state == BucketGradients::State::empty) open(bucket);
  return bucket.grads.filled.slice(place.offset, place.numel);
}

void GradientReducer::open(Bucket& bucket) {
  BucketGradients& gradients = bucket.grads;
  if (pool_) {
    gradients.slot = pool_->acquire(bucket.layout.padded_numel());
    gradients.filled = pool_->view(gradients.slot, bucket.layout.padded_numel());
  } else {
    // An earlier reduction may still read the memory.
    context_.device.inline_stream().wait(gradients.done);
    gradients.filled = gradients.full;
  }
  gradients.state = BucketGradients::State::filling;  // only now: there may be no memory
}

void GradientReducer::fill_missing(const Bucket& bucket) {
  for (const Placement& placement : bucket.layout.placements) {
    if (!batch_.is_missing(placement.parameter)) continue;
    context_.device.fill(context_.device.inline_stream(),
                         bucket.grads.filled.slice(placement.offset, placement.numel), 0.0F);
  }
}

TensorView GradientReducer::prepare(BucketGradients& gradients) {
  Device& device = context_.device;
  Stream& stream = device.inline_stream();
  const TensorView filled = gradients.filled;
  if (context_.sharding.precision.pre_scale != 1.0) {
    device.scale(stream, filled, static_cast<float>(context_.sharding.precision.pre_scale));
  }
  if (!comm_pool_) return filled;
  gradients.comm_slot = comm_pool_->acquire(filled.numel);
  const TensorView outgoing = comm_pool_->view(gradients.comm_slot, filled.numel);
  device.cast(stream, filled, outgoing);
  return outgoing;
}

}  // namespace zerorun
