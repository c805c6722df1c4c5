#include "zero/gradient_reducer.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace zerorun {

namespace {
// One bucket fills, one is reduced, and one (tied embeddings) waits for the end of backward.
constexpr int kSlots = 3;
// One bucket is cast, one is reduced.
constexpr int kCommSlots = 2;
}  // namespace

GradientPool::GradientPool(const EngineContext& context, DType dtype, int64_t slot_numel, int slots)
    : context_(context), dtype_(dtype) {
  const size_t slot_nbytes = static_cast<size_t>(slot_numel) * size_of(dtype);
  const size_t nbytes = slot_nbytes * static_cast<size_t>(slots);
  if (context.comm.reads_peers()) {
    std::optional<Buffer> arena = context.comm.allocate(nbytes, Sharing::per_rank);
    ZR_CHECK(arena, "transport {} gives no per-rank memory", context.comm.transport());
    arena_ = std::move(*arena);
    ledger_entry_ = context.device.account(nbytes, MemoryCategory::buckets);
  } else {
    arena_ = context.device.allocate(nbytes, MemoryCategory::buckets);
  }
  for (int i = 0; i < slots; ++i) {
    Slot slot;
    slot.view = view_of(arena_, dtype, slot_numel, static_cast<size_t>(i) * slot_nbytes);
    slots_.push_back(std::move(slot));
  }
}

int GradientPool::acquire(int64_t numel) {
  Slot* found = nullptr;
  const auto before = [](const Slot& a, const Slot& b) {
    return std::pair(!a.shared, a.released) < std::pair(!b.shared, b.released);
  };
  for (Slot& slot : slots_) {
    if (slot.in_use || slot.view.numel < numel) continue;
    if (found == nullptr || before(slot, *found)) found = &slot;
  }
  if (found == nullptr) {
    Slot slot;
    slot.shared = false;
    slot.private_memory = context_.device.allocate(static_cast<size_t>(numel) * size_of(dtype_),
                                                   MemoryCategory::buckets);
    slot.view = view_of(slot.private_memory, dtype_, numel);
    slots_.push_back(std::move(slot));
    found = &slots_.back();
  }
  context_.device.inline_stream().wait(found->free_after);
  found->in_use = true;
  return static_cast<int>(found - slots_.data());
}

TensorView GradientPool::view(int slot, int64_t numel) const {
  return slots_.at(static_cast<size_t>(slot)).view.slice(0, numel);
}

void GradientPool::release(int slot, Event after) {
  Slot& released = slots_.at(static_cast<size_t>(slot));
  released.in_use = false;
  released.free_after = std::move(after);
  released.released = releases_++;
}

void GradientPool::trim() {
  while (!slots_.empty() && !slots_.back().shared && !slots_.back().in_use &&
         slots_.back().free_after.ready()) {
    slots_.pop_back();
  }
}

GradientPools gradient_pools(const Sharding& sharding, std::span<const Bucket> buckets) {
  GradientPools pools;
  int trainable = 0;
  for (const Bucket& bucket : buckets) {
    if (!bucket.plan.trainable) continue;
    ++trainable;
    pools.slot_numel = std::max(pools.slot_numel, bucket.layout.padded_numel());
  }
  if (sharding.policy.shard_grads) pools.slots = std::min(kSlots, trainable);
  if (sharding.comm_dtype != sharding.param_dtype) {
    pools.comm_slots = std::min(kCommSlots, trainable);
  }
  return pools;
}

GradientReducer::GradientReducer(const EngineContext& context, std::span<const Bucket> buckets,
                                 BucketMemory& memory, GradientInspector& inspector,
                                 GradientNorm& norm, Stream& stream, Offload* offload)
    : context_(context),
      buckets_(buckets),
      memory_(memory),
      inspector_(inspector),
      norm_(norm),
      stream_(stream),
      offload_(offload),
      locations_(context.specs.size()),
      contributions_(context.specs.size(), Contribution::none),
      progress_(buckets.size()) {
  for (const Bucket& bucket : buckets) {
    if (!bucket.plan.trainable) continue;
    schedule_.push_back(bucket.index);
    for (const Placement& placement : bucket.layout.placements) {
      locations_[static_cast<size_t>(placement.parameter)] = {bucket.index, placement.offset,
                                                              placement.numel};
    }
  }
  const GradientPools pools = gradient_pools(context, buckets);
  if (pools.slots > 0) pool_.emplace(context, context.param_dtype, pools.slot_numel, pools.slots);
  if (pools.comm_slots > 0) {
    comm_pool_.emplace(context, context.comm_dtype, pools.slot_numel, pools.comm_slots);
  }
}

const GradientReducer::Location& GradientReducer::locate(ParameterId parameter) const {
  const Location& location = locations_.at(static_cast<size_t>(parameter));
  ZR_CHECK(location.bucket >= 0, "{} is frozen and has no gradient",
           context_.specs[static_cast<size_t>(parameter)].name);
  return location;
}

GradientView GradientReducer::gradient(ParameterId parameter) {
  const Location& location = locate(parameter);
  Progress& progress = progress_[static_cast<size_t>(location.bucket)];
  ZR_CHECK(progress.state != State::launched &&
               contributions_[static_cast<size_t>(parameter)] != Contribution::complete,
           "gradient of {} asked for after its grad_ready in the same micro-step",
           context_.specs[static_cast<size_t>(parameter)].name);
  if (progress.state == State::idle) open(location.bucket);
  Contribution& contribution = contributions_[static_cast<size_t>(parameter)];
  const bool accumulate = contribution != Contribution::none;
  contribution = Contribution::written;
  return {progress.buffer.slice(location.offset, location.numel), accumulate};
}

void GradientReducer::ready(ParameterId parameter) {
  const Location& location = locate(parameter);
  Contribution& contribution = contributions_[static_cast<size_t>(parameter)];
  ZR_CHECK(contribution == Contribution::written,
           "grad_ready of {} without a gradient, or twice in one micro-step",
           context_.specs[static_cast<size_t>(parameter)].name);
  contribution = Contribution::complete;
  --progress_[static_cast<size_t>(location.bucket)].incomplete;
  launch_ready();
}

void GradientReducer::set_boundary(std::optional<bool> boundary) {
  ZR_CHECK(next_ == 0, "set_accumulation_boundary within a micro-step");
  boundary_ = boundary;
}

bool GradientReducer::carries() const { return reduces_in_place(context_) && !is_last(); }

bool GradientReducer::is_last() const {
  return boundary_.value_or((micro_step_ + 1) % context_.accumulation_steps == 0);
}

bool GradientReducer::end_micro_step() {
  const bool last = is_last();
  if (carries()) {
    for (Contribution& contribution : contributions_) {
      if (contribution != Contribution::none) contribution = Contribution::carried;
    }
  } else {
    while (next_ < schedule_.size()) {
      complete_missing(schedule_[next_]);
      launch(schedule_[next_++]);
    }
    std::fill(contributions_.begin(), contributions_.end(), Contribution::none);
    micro_step_ = last ? 0 : micro_step_ + 1;
  }
  for (Progress& progress : progress_) progress.state = State::idle;
  next_ = 0;
  return last;
}

void GradientReducer::extend_batch() {
  ZR_CHECK(!reduces_in_place(context_),
           "a batch that was reduced in place goes on: end_micro_step came too early");
  ZR_CHECK(next_ == 0 && micro_step_ == 0, "extend_batch within a batch");
  norm_.restart(stream_);
  micro_step_ = 1;
}

void GradientReducer::drop_batch() {
  ZR_CHECK(next_ == 0, "drop_batch within a micro-step");
  wait();
  norm_.restart(stream_);
  std::fill(contributions_.begin(), contributions_.end(), Contribution::none);
  micro_step_ = 0;
}

void GradientReducer::wait() {
  for (int bucket : schedule_) progress_[static_cast<size_t>(bucket)].done.synchronize();
  if (pool_) pool_->trim();
  if (comm_pool_) comm_pool_->trim();
}

void GradientReducer::open(int bucket) {
  Progress& progress = progress_[static_cast<size_t>(bucket)];
  const BucketLayout& layout = buckets_[static_cast<size_t>(bucket)].layout;
  if (pool_) {
    progress.slot = pool_->acquire(layout.padded_numel());
    progress.buffer = pool_->view(progress.slot, layout.padded_numel());
  } else {
    // The home buffer may still be read by the previous micro-step's reduction.
    context_.device.inline_stream().wait(progress.done);
    progress.buffer = memory_.gradients(buckets_[static_cast<size_t>(bucket)]).full;
  }
  progress.incomplete = static_cast<int>(layout.placements.size());
  progress.state = State::filling;
}

void GradientReducer::complete_missing(int bucket) {
  Progress& progress = progress_[static_cast<size_t>(bucket)];
  if (progress.state == State::idle) open(bucket);
  for (const Placement& placement : buckets_[static_cast<size_t>(bucket)].layout.placements) {
    if (contributions_[static_cast<size_t>(placement.parameter)] == Contribution::none) {
      context_.device.fill(context_.device.inline_stream(),
                           progress.buffer.slice(placement.offset, placement.numel), 0.0F);
    }
  }
}

void GradientReducer::launch_ready() {
  if (carries()) return;
  while (next_ < schedule_.size()) {
    const Progress& progress = progress_[static_cast<size_t>(schedule_[next_])];
    if (progress.state != State::filling || progress.incomplete > 0) return;
    launch(schedule_[next_++]);
  }
}

void GradientReducer::launch(int index) {
  Progress& progress = progress_[static_cast<size_t>(index)];
  const Bucket& bucket = buckets_[static_cast<size_t>(index)];
  inspector_.look_at(bucket, progress.buffer);
  const TensorView outgoing = prepare(progress);
  stream_.wait(context_.device.inline_stream().record());
  reduce(bucket, outgoing, progress);
  progress.state = State::launched;
}

void GradientReducer::reduce(const Bucket& bucket, TensorView outgoing, Progress& progress) {
  const bool first = micro_step_ == 0;
  const Output output = first ? Output::overwrite : Output::accumulate;
  BucketGradients& gradients = memory_.gradients(bucket);
  HostGradients* const host = bucket.stored.offloaded ? offload_->gradients.get() : nullptr;
  const TensorView reduced =
      host == nullptr ? gradients.reduced : host->output(bucket, gradients, output, stream_);
  if (context_.policy.shard_state) {
    // What rests elsewhere is added to there.
    progress.done = context_.comm.reduce_scatter(
        outgoing, reduced, host == nullptr ? output : Output::overwrite, stream_, bucket.label);
  } else {
    progress.done =
        context_.comm.all_reduce(outgoing, reduced, ReduceOp::sum, output, stream_, bucket.label);
  }
  if (pool_) pool_->release(progress.slot, progress.done);
  if (comm_pool_) comm_pool_->release(progress.comm_slot, progress.done);
  const bool whole = host == nullptr || first;  // the gradient so far is what was just reduced
  if (is_last() && whole) norm_.add(bucket, reduced, 0, stream_);
  if (host == nullptr) return;
  const Event taken = host->take(bucket, gradients, reduced, output, stream_);
  if (reduces_in_place(context_)) progress.done = taken;  // backward writes there again
  if (is_last() && !whole) {
    norm_.add(bucket, gradients.reduced, 0, stream_);
    norm_.add_host(bucket, gradients, *offload_->pipeline);
  }
}

TensorView GradientReducer::prepare(Progress& progress) {
  Device& device = context_.device;
  Stream& stream = device.inline_stream();
  if (context_.pre_scale != 1.0) {
    device.scale(stream, progress.buffer, static_cast<float>(context_.pre_scale));
  }
  if (!comm_pool_) return progress.buffer;
  progress.comm_slot = comm_pool_->acquire(progress.buffer.numel);
  const TensorView outgoing = comm_pool_->view(progress.comm_slot, progress.buffer.numel);
  device.cast(stream, progress.buffer, outgoing);
  return outgoing;
}

}  // namespace zerorun
