#include "zero/gradient_reducer.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace zerorun {

namespace {
// One bucket fills, one is reduced, and one (tied embeddings) waits for the end of backward.
constexpr int kSlots = 3;
}  // namespace

GradientPool::GradientPool(const EngineContext& context, int64_t slot_numel, int slots)
    : context_(context) {
  const size_t slot_nbytes = static_cast<size_t>(slot_numel) * size_of(context.param_dtype);
  const size_t nbytes = slot_nbytes * static_cast<size_t>(slots);
  std::optional<Buffer> slab = context.comm.allocate(nbytes, Sharing::per_rank);
  ZR_CHECK(slab, "transport {} gives no per-rank memory", context.comm.transport());
  slab_ = std::move(*slab);
  ledger_entry_ = context.device.account(nbytes, MemoryCategory::buckets);
  for (int i = 0; i < slots; ++i) {
    Slot slot;
    slot.view =
        view_of(slab_, context.param_dtype, slot_numel, static_cast<size_t>(i) * slot_nbytes);
    slots_.push_back(std::move(slot));
  }
}

int GradientPool::acquire(int64_t numel) {
  int reducing = -1;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].in_use || slots_[i].view.numel < numel) continue;
    if (slots_[i].free_after.ready()) {
      slots_[i].in_use = true;
      return static_cast<int>(i);
    }
    if (reducing < 0) reducing = static_cast<int>(i);
  }
  if (reducing >= 0) {
    Slot& slot = slots_[static_cast<size_t>(reducing)];
    slot.free_after.synchronize();
    slot.in_use = true;
    return reducing;
  }
  Slot slot;
  slot.shared = false;
  slot.in_use = true;
  slot.private_memory = context_.device.allocate(
      static_cast<size_t>(numel) * size_of(context_.param_dtype), MemoryCategory::buckets);
  slot.view = view_of(slot.private_memory, context_.param_dtype, numel);
  slots_.push_back(std::move(slot));
  return static_cast<int>(slots_.size()) - 1;
}

TensorView GradientPool::view(int slot, int64_t numel) const {
  return slots_.at(static_cast<size_t>(slot)).view.slice(0, numel);
}

void GradientPool::release(int slot, Event after) {
  slots_.at(static_cast<size_t>(slot)).in_use = false;
  slots_.at(static_cast<size_t>(slot)).free_after = std::move(after);
}

void GradientPool::trim() {
  while (!slots_.empty() && !slots_.back().shared && !slots_.back().in_use &&
         slots_.back().free_after.ready()) {
    slots_.pop_back();
  }
}

GradientReducer::GradientReducer(const EngineContext& context, std::vector<Bucket>& buckets,
                                 GradientNorm& norm, Stream& stream)
    : context_(context),
      buckets_(buckets),
      norm_(norm),
      stream_(stream),
      locations_(context.specs.size()),
      contributions_(context.specs.size(), Contribution::none),
      progress_(buckets.size()) {
  int64_t largest = 0;
  for (const Bucket& bucket : buckets) {
    if (!bucket.plan.trainable) continue;
    schedule_.push_back(bucket.index);
    largest = std::max(largest, bucket.layout.padded_numel());
    for (const Placement& placement : bucket.layout.placements) {
      locations_[static_cast<size_t>(placement.parameter)] = {bucket.index, placement.offset,
                                                              placement.numel};
    }
  }
  if (context.policy.shard_grads && !schedule_.empty()) {
    const int slots = std::min(kSlots, static_cast<int>(schedule_.size()));
    pool_.emplace(context, largest, slots);
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
  const bool accumulate = contribution == Contribution::written;
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

bool GradientReducer::end_micro_step() {
  while (next_ < schedule_.size()) {
    complete_missing(schedule_[next_]);
    launch(schedule_[next_++]);
  }
  for (Progress& progress : progress_) progress.state = State::idle;
  std::fill(contributions_.begin(), contributions_.end(), Contribution::none);
  next_ = 0;
  micro_step_ = (micro_step_ + 1) % context_.accumulation_steps;
  return micro_step_ == 0;
}

void GradientReducer::wait() {
  for (int bucket : schedule_) progress_[static_cast<size_t>(bucket)].done.synchronize();
  if (pool_) pool_->trim();
}

void GradientReducer::open(int bucket) {
  Progress& progress = progress_[static_cast<size_t>(bucket)];
  const BucketLayout& layout = buckets_[static_cast<size_t>(bucket)].layout;
  if (pool_) {
    progress.slot = pool_->acquire(layout.padded_numel());
    progress.buffer = pool_->view(progress.slot, layout.padded_numel());
  } else {
    // The home buffer may still be read by the previous micro-step's reduction.
    progress.done.synchronize();
    progress.buffer = buckets_[static_cast<size_t>(bucket)].grad;
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
  while (next_ < schedule_.size()) {
    const Progress& progress = progress_[static_cast<size_t>(schedule_[next_])];
    if (progress.state != State::filling || progress.incomplete > 0) return;
    launch(schedule_[next_++]);
  }
}

void GradientReducer::launch(int index) {
  Progress& progress = progress_[static_cast<size_t>(index)];
  const Bucket& bucket = buckets_[static_cast<size_t>(index)];
  stream_.wait(context_.device.inline_stream().record());
  const Output output = micro_step_ == 0 ? Output::overwrite : Output::accumulate;
  if (context_.policy.shard_state) {
    progress.done = context_.comm.reduce_scatter(progress.buffer, bucket.reduced, output, stream_,
                                                 bucket.label);
  } else {
    progress.done = context_.comm.all_reduce(progress.buffer, bucket.reduced, ReduceOp::sum, output,
                                             stream_, bucket.label);
  }
  if (pool_) pool_->release(progress.slot, progress.done);
  if (micro_step_ + 1 == context_.accumulation_steps) norm_.add(bucket, stream_);
  progress.state = State::launched;
}

}  // namespace zerorun
