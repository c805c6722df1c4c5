#include "amp/step_decision.h"

#include <limits>

namespace zerorun {

StepDecider::StepDecider(const Config& config, double average)
    : max_norm_(config.gradient_clipping),
      average_(average),
      check_overflow_(config.precision.check_grad_overflow ||
                      config.precision.param_dtype != DType::bf16) {
  const bool scales = config.precision.param_dtype == DType::fp16 || config.precision.scales_loss;
  if (scales) scaler_.emplace(config.precision.loss_scaler);
}

StepDecision StepDecider::decide(double norm, bool finite) {
  StepDecision decision;
  StepResult& result = decision.result;
  result.loss_scale = loss_scale();
  // The gradients were made with the scale from before the update.
  const StepVerdict verdict(rule(), norm, finite);
  // `norm` is that of the elements that are finite.
  result.grad_norm = finite ? verdict.norm : std::numeric_limits<double>::infinity();
  result.applied = verdict.applied;
  result.clip_factor = verdict.clip;
  decision.grad_scale = verdict.factor;
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
