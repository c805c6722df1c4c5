#include "zero/step_control.h"

#include "amp/clip.h"
#include "core/check.h"

namespace zerorun {

namespace {

// What is left to divide by after EngineContext::pre_scale.
double average_of(const EngineContext& context, const Config& config) {
  const double ranks = config.precision.gradient_reduction == GradientReduction::mean
                           ? context.comm.world_size()
                           : 1;
  return 1.0 / (ranks * static_cast<double>(context.accumulation_steps) * context.pre_scale);
}

}  // namespace

StepControl::StepControl(const EngineContext& context, const Config& config)
    : max_norm_(config.gradient_clipping),
      average_(average_of(context, config)),
      check_overflow_(config.precision.check_grad_overflow ||
                      config.precision.param_dtype != DType::bf16),
      norm_(context),
      inspector_(context) {
  if (config.precision.param_dtype == DType::fp16) {
    scaler_.emplace(config.precision.loss_scaler);
    inspector_.watch(scaler_->at_minimum());
  }
}

StepControl::Decision StepControl::decide(Stream& stream) {
  const GradientNorm::Result sum = norm_.finish(stream);
  const double scale = loss_scale();
  Decision decision;
  StepResult& result = decision.result;
  result.loss_scale = scale;
  result.grad_norm = sum.norm * average();
  result.applied = sum.finite || !check_overflow_;
  if (result.applied) result.clip_factor = clip_factor(result.grad_norm, max_norm_);
  // The gradients were made with the scale of before the update.
  decision.grad_scale = static_cast<float>(average() * result.clip_factor);
  if (scaler_) update_scaler(!sum.finite, scale, stream);
  return decision;
}

void StepControl::update_scaler(bool overflow, double scale, Stream& stream) {
  if (scaler_->update(overflow) == LossScaler::Outcome::exhausted) {
    fail<NumericError>(
        "loss scale {:g} is already the minimum and the gradient still overflows: {}. A nan, or an "
        "inf at this scale, comes from the model or its data, not from the scale; lower the "
        "learning rate, look at that parameter, or train in bf16",
        scale, inspector_.report(stream));
  }
  inspector_.watch(scaler_->at_minimum());
}

std::optional<LossScalerState> StepControl::scaler_state() const {
  return scaler_ ? std::optional(scaler_->state()) : std::nullopt;
}

void StepControl::load_scaler_state(const std::optional<LossScalerState>& state) {
  if (!scaler_ || !state) return;
  scaler_->load_state(*state);
  inspector_.watch(scaler_->at_minimum());
}

}  // namespace zerorun
