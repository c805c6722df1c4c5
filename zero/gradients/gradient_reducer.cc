#include "zero/gradients/gradient_reducer.h"

#include <utility>

#include "comm/agreement.h"
#include "core/check.h"

namespace zerorun {

GradientReducer::GradientReducer(const EngineContext& context, std::span<const Bucket> buckets,
                                 BucketMemory& memory, StepControl& control, Stream& stream,
                                 Offload* offload)
    : context_(context),
      buckets_(buckets),
      memory_(memory),
      micro_step_(context, buckets),
      control_(control),
      stream_(stream),
      offload_(offload),
      groups_(context, buckets),
      flights_(buckets.size()) {
  const GradientPools pools = gradient_pools(context, buckets);
  if (pools.slots > 0)
    pool_.emplace(context, context.param_dtype, pools.slot_numel, pools.slots, pools.small_numel);
  if (pools.comm_slots > 0) {
    comm_pool_.emplace(context, context.comm_dtype, pools.slot_numel, pools.comm_slots);
  }
}

GradientView GradientReducer::gradient(ParameterId parameter) {
  micro_step_.locate(parameter);  // not frozen
  begin_round();
  const bool accumulate = micro_step_.write(parameter);
  return {place(parameter), accumulate};
}

void GradientReducer::add(std::span<const Contribution> gradients) {
  for (const Contribution& one : gradients) micro_step_.locate(one.parameter);  // not frozen
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
  const int64_t numel = micro_step_.locate(parameter).numel;
  if (!micro_step_.is_late(parameter)) {
    const bool accumulate = micro_step_.add(parameter);
    return {place(parameter), accumulate};
  }
  Buffer& late = late_.gradients[parameter];
  const bool accumulate = static_cast<bool>(late);
  if (!late) {
    late = context_.device.allocate(static_cast<size_t>(numel) * size_of(context_.param_dtype),
                                    MemoryCategory::buckets);
  }
  return {view_of(late, context_.param_dtype, numel), accumulate};
}

void GradientReducer::reduce(int index) {
  const Bucket& bucket = buckets_[static_cast<size_t>(index)];
  const BucketGradients& gradients = memory_.gradients(bucket);
  Flight& flight = flights_[static_cast<size_t>(index)];
  control_.inspector().look_at(bucket, flight.buffer);
  const TensorView outgoing = prepare(flight);
  stream_.wait(context_.device.inline_stream().record());
  Output output = micro_step_.is_first_reduction() ? Output::overwrite : Output::accumulate;
  TensorView reduced = gradients.reduced;
  if (bucket.stored.offloaded) {
    reduced = offload_->gradients->output(bucket, gradients, output, stream_);
    output = Output::overwrite;  // it is added to the sum where that is stored
  } else if (!aside_.empty()) {
    reduced = sum_aside(bucket);
  }
  Communicator& all = context_.all(bucket.plan.ranks);
  if (context_.replica_group || (context_.cross_group && bucket.plan.quantized)) {
    flight.done = groups_.run(bucket, outgoing, reduced, output, stream_);
  } else if (context_.policy.shard_state) {
    flight.done = all.reduce_scatter(outgoing, reduced, output, stream_, bucket.label);
  } else {
    flight.done = all.all_reduce(outgoing, reduced, ReduceOp::sum, output, stream_, bucket.label);
  }
  if (pool_) pool_->release(flight.slot, flight.done);
  if (comm_pool_) comm_pool_->release(flight.comm_slot, flight.done);
  const Event stored = store(bucket, reduced);
  if (reduces_in_place(context_)) flight.done = stored;
}

Event GradientReducer::store(const Bucket& bucket, TensorView reduced) {
  BucketGradients& gradients = memory_.gradients(bucket);
  const bool first = micro_step_.is_first_reduction();
  const bool last = micro_step_.is_last();
  norm_begun_ |= last;
  sum_in_place_ = true;
  if (!aside_.empty()) {  // the sum, or the part of it that stays on the device, goes back
    const TensorView sum = sum_aside(bucket);
    context_.device.cast(stream_, sum, gradients.reduced.slice(0, sum.numel));
  }
  if (!bucket.stored.offloaded) {
    if (last) control_.norm().add(bucket, reduced, 0, stream_);
    return stream_.record();
  }
  if (last && first)
    control_.norm().add(bucket, reduced, 0, stream_);  // the sum is what was just reduced
  Event taken = offload_->gradients->take(bucket, gradients, reduced,
                                          first ? Output::overwrite : Output::accumulate, stream_);
  if (last && !first) add_stored(bucket);
  return taken;
}

void GradientReducer::add_stored(const Bucket& bucket) {
  const BucketGradients& gradients = memory_.gradients(bucket);
  if (!bucket.stored.offloaded) {
    control_.norm().add(bucket, gradients.reduced, 0, stream_);
    return;
  }
  control_.norm().add(bucket, gradients.reduced.slice(0, bucket.stored.host_from), 0, stream_);
  control_.norm().add_host(bucket, gradients, *offload_->pipeline);
}

TensorView GradientReducer::whole(ParameterId parameter) {
  wait();
  const MicroStep::Location& location = micro_step_.locate(parameter);
  const Bucket& bucket = buckets_[static_cast<size_t>(location.bucket)];
  const TensorView reduced = memory_.gradients(bucket).reduced;
  const bool is_whole = !context_.policy.shard_state && !bucket.stored.offloaded;
  return is_whole ? reduced.slice(location.offset, location.numel) : TensorView{};
}

void GradientReducer::measure() {
  wait();
  if (!norm_begun_) return;  // the batch's last micro-step will
  stream_.wait(context_.device.inline_stream().record());
  control_.norm().restart(stream_);
  for (const int index : micro_step_.schedule().order()) {
    add_stored(buckets_[static_cast<size_t>(index)]);
  }
}

void GradientReducer::reduce_rest() {
  begin_round();
  while (const std::optional<int> next = micro_step_.take_next()) {
    if (micro_step_.fills(*next)) open(*next);
    fill_missing(buckets_[static_cast<size_t>(*next)]);
    reduce(*next);
  }
  micro_step_.close();
  late_.agreed = false;
}

void GradientReducer::reduce_late_now() {
  const BatchPhase phase = micro_step_.phase();
  const bool is_closed = phase == BatchPhase::reduced || phase == BatchPhase::step_due;
  if (!is_closed || late_.agreed) return;
  const int64_t own = late_.gradients.empty() ? 0 : 1;
  if (Agreement(context_.comm, stream_).reduce(own, ReduceOp::max, "late gradients") > 0) {
    reduce_late();
    wait();
    if (phase == BatchPhase::step_due) micro_step_.end();
  }
  late_.agreed = true;
}

GradientNorm::Result GradientReducer::finish(int64_t gather_order, const Ahead& ahead) {
  GradientNorm::Votes votes = {
      .any = micro_step_.has_gradient(),
      .late = !late_.gradients.empty(),
      .new_order = context_.rank == 0 && micro_step_.schedule().wants_change(),
      .gather_order = gather_order};
  GradientNorm& norm = control_.norm();
  while (true) {
    norm.start(stream_, votes, ahead ? std::optional(control_.rule()) : std::nullopt);
    if (ahead) ahead(norm.decision());
    const GradientNorm::Result result = norm.read();
    if (!result.late) {
      end_batch(result.new_order);
      return result;
    }
    norm_begun_ = false;
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
    const int64_t numel = micro_step_.locate(parameter).numel;
    gradients.push_back({parameter, view_of(memory, context_.param_dtype, numel)});
  }
  add(gradients);
  context_.device.inline_stream().synchronize();  // `late` ends here
  reduce_rest();
}

void GradientReducer::drop() {
  wait();
  control_.norm().restart(stream_);
  late_.gradients.clear();
  end_batch(false);
}

void GradientReducer::end_batch(bool new_order) {
  std::vector<int64_t> order;
  if (new_order) {
    order = micro_step_.schedule().proposal();
    order.resize(micro_step_.schedule().order().size());  // ranks but 0 may have none
    context_.comm.broadcast(view_of(std::span(order)), 0, stream_, "order of buckets")
        .synchronize();
  }
  micro_step_.end_batch(order);
  groups_.end_batch(stream_);
  aside_.clear();
  sum_in_place_ = norm_begun_ = false;
}

void GradientReducer::wait() {
  for (Flight& flight : flights_) flight.done.synchronize();
  trim();
}

void GradientReducer::trim() {
  if (pool_) pool_->trim();
  if (comm_pool_) comm_pool_->trim();
}

void GradientReducer::begin_round() {
  if (micro_step_.phase() == BatchPhase::open) return;
  micro_step_.open();
  if (std::exchange(norm_begun_, false)) control_.norm().restart(stream_);
  if (reduces_in_place(context_) && std::exchange(sum_in_place_, false)) set_sum_aside();
}

void GradientReducer::set_sum_aside() {
  aside_.resize(buckets_.size());
  Device& device = context_.device;
  for (const int index : micro_step_.schedule().order()) {
    const Bucket& bucket = buckets_[static_cast<size_t>(index)];
    Buffer& memory = aside_[static_cast<size_t>(index)];
    if (!memory) {
      const TensorView shape{nullptr, bucket.stored.host_from, context_.accum_dtype};
      memory = device.allocate(shape.nbytes(), MemoryCategory::buckets);
    }
    Stream& stream = device.inline_stream();
    stream.wait(flights_[static_cast<size_t>(index)].done);
    const TensorView sum = sum_aside(bucket);
    device.cast(stream, memory_.gradients(bucket).reduced.slice(0, sum.numel), sum);
  }
}

TensorView GradientReducer::sum_aside(const Bucket& bucket) const {
  return view_of(aside_[static_cast<size_t>(bucket.index)], context_.accum_dtype,
                 bucket.stored.host_from);
}

TensorView GradientReducer::place(ParameterId parameter) {
  const MicroStep::Location& location = micro_step_.locate(parameter);
  if (micro_step_.fills(location.bucket)) open(location.bucket);
  return flights_[static_cast<size_t>(location.bucket)].buffer.slice(location.offset,
                                                                     location.numel);
}

void GradientReducer::open(int bucket) {
  Flight& flight = flights_[static_cast<size_t>(bucket)];
  const BucketLayout& layout = buckets_[static_cast<size_t>(bucket)].layout;
  if (pool_) {
    flight.slot = pool_->acquire(layout.padded_numel());
    flight.buffer = pool_->view(flight.slot, layout.padded_numel());
  } else {
    // An earlier reduction may still read the memory.
    context_.device.inline_stream().wait(flight.done);
    flight.buffer = memory_.gradients(buckets_[static_cast<size_t>(bucket)]).full;
  }
}

void GradientReducer::fill_missing(const Bucket& bucket) {
  const TensorView buffer = flights_[static_cast<size_t>(bucket.index)].buffer;
  for (const Placement& placement : bucket.layout.placements) {
    if (!micro_step_.is_missing(placement.parameter)) continue;
    context_.device.fill(context_.device.inline_stream(),
                         buffer.slice(placement.offset, placement.numel), 0.0F);
  }
}

TensorView GradientReducer::prepare(Flight& flight) {
  Device& device = context_.device;
  Stream& stream = device.inline_stream();
  if (context_.pre_scale != 1.0) {
    device.scale(stream, flight.buffer, static_cast<float>(context_.pre_scale));
  }
  if (!comm_pool_) return flight.buffer;
  flight.comm_slot = comm_pool_->acquire(flight.buffer.numel);
  const TensorView outgoing = comm_pool_->view(flight.comm_slot, flight.buffer.numel);
  device.cast(stream, flight.buffer, outgoing);
  return outgoing;
}

}  // namespace zerorun
