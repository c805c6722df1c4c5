#include "zero/gradients/micro_step.h"

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

MicroStep::MicroStep(const Sharding& sharding, std::span<const Bucket> buckets)
    : specs_(sharding.specs),
      in_place_(reduces_in_place(sharding)),
      rule_{.accumulation_steps = sharding.accumulation_steps},
      locations_(specs_.size()),
      contributions_(specs_.size()),
      filling_(buckets.size()),
      schedule_(trainable_buckets(buckets)) {
  for (const Bucket& bucket : buckets) {
    if (!bucket.plan.trainable) continue;
    Filling& filling = filling_[static_cast<size_t>(bucket.index)];
    filling.parameters = static_cast<int>(bucket.layout.placements.size());
    filling.incomplete = filling.parameters;
    for (const Placement& placement : bucket.layout.placements) {
      locations_[static_cast<size_t>(placement.parameter)] = {bucket.index, placement.offset,
                                                              placement.numel};
    }
  }
}

const MicroStep::Location& MicroStep::locate(ParameterId parameter) const {
  const Location& location = locations_.at(static_cast<size_t>(parameter));
  ZR_CHECK(location.bucket >= 0, "{} is frozen and has no gradient",
           specs_[static_cast<size_t>(parameter)].name);
  return location;
}

BatchState MicroStep::state() const {
  return {.phase = phase_, .micro_steps = micro_steps_, .last = is_last(), .rule = rule_};
}

void MicroStep::set_rule(const BatchRule& rule) {
  ZR_CHECK(phase_ != BatchPhase::open, "set_batch_rule within a micro-step");
  ZR_CHECK(rule.accumulation_steps > 0, "accumulation_steps: got {}, expected at least 1",
           rule.accumulation_steps);
  rule_ = rule;
}

bool MicroStep::is_last() const {
  return !rule_.no_sync && rule_.boundary.value_or(micro_steps_ + 1 >= rule_.accumulation_steps);
}

void MicroStep::open() {
  ZR_CHECK(phase_ != BatchPhase::open, "a round of gradients begins within another one");
  first_round_ = phase_ == BatchPhase::idle;
  phase_ = BatchPhase::open;
}

bool MicroStep::fills(int bucket) {
  return !std::exchange(filling_[static_cast<size_t>(bucket)].begun, true);
}

bool MicroStep::write(ParameterId parameter) {
  ZR_CHECK(!is_late(parameter) && contribution(parameter).progress != Progress::complete,
           "gradient of {} asked for after its grad_ready in the same micro-step",
           specs_[static_cast<size_t>(parameter)].name);
  return add(parameter);
}

bool MicroStep::add(ParameterId parameter) {
  has_gradient_ = true;
  Progress& progress = contribution(parameter).progress;
  const bool adds = progress != Progress::none;
  if (progress != Progress::complete) progress = Progress::written;
  return adds;
}

bool MicroStep::is_late(ParameterId parameter) const {
  return filling_[static_cast<size_t>(locate(parameter).bucket)].gone;
}

void MicroStep::receive(ParameterId parameter) {
  Contribution& from = contribution(parameter);
  has_gradient_ = true;  // late ones too
  ++from.received;
  const bool awaited = from.progress != Progress::complete && !is_late(parameter);
  if (awaited && from.received >= from.expected) complete(parameter);
}

void MicroStep::complete(ParameterId parameter) {
  const int bucket = locate(parameter).bucket;
  Contribution& from = contribution(parameter);
  ZR_CHECK(phase_ == BatchPhase::open && from.progress == Progress::written,
           "grad_ready of {} without a gradient, or twice in one micro-step",
           specs_[static_cast<size_t>(parameter)].name);
  from.progress = Progress::complete;
  if (--filling_[static_cast<size_t>(bucket)].incomplete == 0) schedule_.arrived(bucket);
}

bool MicroStep::is_missing(ParameterId parameter) const {
  return contributions_[static_cast<size_t>(parameter)].progress == Progress::none;
}

std::optional<int> MicroStep::take_ready() {
  const std::optional<int> next = schedule_.next();
  if (!next || stays_local()) return std::nullopt;
  return filling_[static_cast<size_t>(*next)].incomplete > 0 ? std::nullopt : take();
}

std::optional<int> MicroStep::take_next() { return stays_local() ? std::nullopt : take(); }

std::optional<int> MicroStep::take() {
  const std::optional<int> next = schedule_.next();
  if (!next) return std::nullopt;
  filling_[static_cast<size_t>(*next)].gone = true;
  schedule_.advance();
  return next;
}

void MicroStep::close() {
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
  for (Filling& filling : filling_) {
    filling.incomplete = filling.parameters;
    filling.begun = filling.gone = false;
  }
  schedule_.end_round(first_round_);
  if (!local) ++reductions_;
  reduced_as_last_ = is_last();
  phase_ = BatchPhase::reduced;
}

bool MicroStep::is_reduced() const {
  return phase_ == BatchPhase::reduced && (reduced_as_last_ || !is_last());
}

bool MicroStep::end() {
  ZR_CHECK(is_reduced(), "a micro-step ends before its gradients are reduced");
  const bool last = is_last();
  if (!last) ++micro_steps_;
  phase_ = last ? BatchPhase::step_due : BatchPhase::idle;
  return last;
}

void MicroStep::end_batch(std::span<const int64_t> order) {
  ZR_CHECK(phase_ != BatchPhase::open, "a batch ends within a micro-step");
  for (Contribution& from : contributions_) from.progress = Progress::none;
  schedule_.end_batch(order);
  micro_steps_ = 0;
  reductions_ = 0;
  has_gradient_ = false;
  phase_ = BatchPhase::idle;
}

}  // namespace zerorun
