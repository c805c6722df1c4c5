#include "zero/gradients/gradient_batch.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace zerorun {

namespace {

std::vector<int> trainable_buckets(std::span<const Bucket> buckets) {
  std::vector<int> order;
  for (const Bucket& bucket : buckets) {
    if (bucket.plan.trainable) order.push_back(bucket.index);
  }
  return order;
}

}  // namespace

BucketSchedule::BucketSchedule(std::vector<int> order) : order_(std::move(order)) {}

std::optional<int> BucketSchedule::next() const {
  return next_ < order_.size() ? std::optional(order_[next_]) : std::nullopt;
}

void BucketSchedule::end_round(bool learn) {
  if (learn) {
    proposal_ = arrivals_;
    for (const int bucket : order_) {
      if (std::find(arrivals_.begin(), arrivals_.end(), bucket) == arrivals_.end()) {
        proposal_.push_back(bucket);
      }
    }
  }
  arrivals_.clear();
  next_ = 0;
}

bool BucketSchedule::wants_change() const {
  if (proposal_.empty() || proposal_ == order_) return false;
  return !changed_ || proposal_ == previous_;
}

void BucketSchedule::end_batch(std::span<const int64_t> agreed) {
  if (!agreed.empty()) {
    order_.assign(agreed.begin(), agreed.end());
    changed_ = true;
  }
  previous_ = std::exchange(proposal_, {});
}

GradientBatch::GradientBatch(const Sharding& sharding, Buckets& buckets)
    : buckets_(buckets),
      specs_(sharding.specs),
      in_place_(reduces_in_place(sharding)),
      rule_{.accumulation_steps = sharding.accumulation_steps},
      contributions_(specs_.size()),
      schedule_(trainable_buckets(buckets)) {
  for (Bucket& bucket : buckets) {
    bucket.grads.incomplete = static_cast<int>(bucket.layout.placements.size());
  }
}

const ParameterPlace& GradientBatch::place_of(ParameterId parameter) const {
  const ParameterPlace& place = buckets_.place_of(parameter);
  ZR_CHECK(place.bucket >= 0 && buckets_[place.bucket].plan.trainable,
           "{} is frozen and has no gradient", specs_[static_cast<size_t>(parameter)].name);
  return place;
}

BatchState GradientBatch::state() const {
  return {.phase = phase_, .micro_steps = micro_steps_, .last = is_last(), .rule = rule_};
}

void GradientBatch::set_rule(const BatchRule& rule) {
  ZR_CHECK(phase_ != BatchPhase::open, "set_batch_rule within a micro-step");
  ZR_CHECK(rule.accumulation_steps > 0, "accumulation_steps: got {}, expected at least 1",
           rule.accumulation_steps);
  rule_ = rule;
}

bool GradientBatch::is_last() const {
  return !rule_.no_sync && rule_.boundary.value_or(micro_steps_ + 1 >= rule_.accumulation_steps);
}

void GradientBatch::open() {
  ZR_CHECK(phase_ != BatchPhase::open, "a round of gradients begins within another one");
  first_round_ = phase_ == BatchPhase::idle;
  phase_ = BatchPhase::open;
}

bool GradientBatch::write(ParameterId parameter) {
  ZR_CHECK(!is_late(parameter) && contribution(parameter).progress != Progress::complete,
           "gradient of {} asked for after its grad_ready in the same micro-step",
           specs_[static_cast<size_t>(parameter)].name);
  return add(parameter);
}

bool GradientBatch::add(ParameterId parameter) {
  has_gradient_ = true;
  Progress& progress = contribution(parameter).progress;
  const bool adds = progress != Progress::none;
  if (progress != Progress::complete) progress = Progress::written;
  return adds;
}

bool GradientBatch::is_late(ParameterId parameter) const {
  return buckets_[place_of(parameter).bucket].grads.state == BucketGradients::State::reduced;
}

void GradientBatch::receive(ParameterId parameter) {
  Contribution& from = contribution(parameter);
  has_gradient_ = true;  // late ones too
  ++from.received;
  const bool awaited = from.progress != Progress::complete && !is_late(parameter);
  if (awaited && from.received >= from.expected) complete(parameter);
}

void GradientBatch::complete(ParameterId parameter) {
  Bucket& bucket = buckets_[place_of(parameter).bucket];
  Contribution& from = contribution(parameter);
  ZR_CHECK(phase_ == BatchPhase::open && from.progress == Progress::written,
           "grad_ready of {} without a gradient, or twice in one micro-step",
           specs_[static_cast<size_t>(parameter)].name);
  from.progress = Progress::complete;
  if (--bucket.grads.incomplete == 0) schedule_.arrived(bucket.index);
}

bool GradientBatch::is_missing(ParameterId parameter) const {
  return contributions_[static_cast<size_t>(parameter)].progress == Progress::none;
}

Bucket* GradientBatch::next() const {
  const std::optional<int> index = schedule_.next();
  return index && !stays_local() ? &buckets_[*index] : nullptr;
}

Bucket* GradientBatch::pop_ready() {
  const Bucket* const bucket = next();
  return bucket != nullptr && bucket->grads.incomplete == 0 ? pop_next() : nullptr;
}

Bucket* GradientBatch::pop_next() {
  Bucket* const bucket = next();
  if (bucket != nullptr) schedule_.advance();
  return bucket;
}

void GradientBatch::close() {
  ZR_CHECK(phase_ == BatchPhase::open, "a round of gradients ends that has not begun");
  const bool local = stays_local();
  for (Contribution& from : contributions_) {
    if (from.received > 0) from.expected = from.received;
    from.received = 0;
    if (!local) {
      from.progress = Progress::none;
    } else if (from.progress != Progress::none) {
      from.progress = Progress::kept;
    }
  }
  for (Bucket& bucket : buckets_) {
    bucket.grads.state = BucketGradients::State::empty;
    bucket.grads.incomplete = static_cast<int>(bucket.layout.placements.size());
  }
  schedule_.end_round(first_round_);
  if (!local) ++reductions_;
  reduced_as_last_ = is_last();
  phase_ = BatchPhase::reduced;
}

bool GradientBatch::is_reduced() const {
  return phase_ == BatchPhase::reduced && (reduced_as_last_ || !is_last());
}

bool GradientBatch::end() {
  ZR_CHECK(is_reduced(), "a micro-step ends before its gradients are reduced");
  const bool last = is_last();
  if (!last) ++micro_steps_;
  phase_ = last ? BatchPhase::step_due : BatchPhase::idle;
  return last;
}

void GradientBatch::end_batch(std::span<const int64_t> order) {
  ZR_CHECK(phase_ != BatchPhase::open, "a batch ends within a micro-step");
  for (Contribution& from : contributions_) from.progress = Progress::none;
  schedule_.end_batch(order);
  micro_steps_ = 0;
  reductions_ = 0;
  has_gradient_ = false;
  phase_ = BatchPhase::idle;
}

}  // namespace zerorun
