#include "amp/step_decision.h"

namespace zerorun {

double clip_factor(double norm, double max_norm) {
  if (max_norm <= 0.0) return 1.0;
  const double factor = max_norm / (norm + 1e-6);
  return factor > 1.0 ? 1.0 : factor;
}

StepDecider::StepDecider(const Config& config, double average)
    : max_norm_(config.gradient_clipping),
      average_(average),
      check_overflow_(config.precision.check_grad_overflow ||
                      config.precision.param_dtype != DType::bf16) {
  if (config.precision.param_dtype == DType::fp16) scaler_.emplace(config.precision.loss_scaler);
}

StepDecision StepDecider::decide(double norm, bool finite) {
  StepDecision decision;
  StepResult& result = decision.result;
  result.loss_scale = loss_scale();
  result.grad_norm = norm * average();
  result.applied = finite || !check_overflow_;
  if (result.applied) result.clip_factor = clip_factor(result.grad_norm, max_norm_);
  // The gradients were made with the scale from before the update.
  decision.grad_scale = static_cast<float>(average() * result.clip_factor);
  if (scaler_) decision.exhausted = scaler_->update(!finite) == LossScaler::Outcome::exhausted;
  return decision;
}

std::optional<LossScalerState> StepDecider::scaler_state() const {
  return scaler_ ? std::optional(scaler_->state()) : std::nullopt;
}

void StepDecider::load_scaler_state(const std::optional<LossScalerState>& state) {
  if (scaler_ && state) scaler_->load_state(*state);
}

}  // namespace zerorun
