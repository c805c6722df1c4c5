#include "amp/step_decider.h"

namespace zerorun {

StepDecider::StepDecider(const Config& config, double divisor)
    : max_norm_(config.gradient_clipping),
      divisor_(divisor),
      average_(1.0 / divisor),
      check_overflow_(config.precision.check_grad_overflow ||
                      config.precision.param_dtype != DType::bf16) {
  const bool scales = config.precision.param_dtype == DType::fp16 || config.precision.scales_loss;
  if (scales) scaler_.emplace(config.precision.loss_scaler);
}

StepDecision StepDecider::decide(double norm, bool finite) {
  const StepDecision decision(rule(), norm, finite);
  if (scaler_) scaler_->update(!finite);
  return decision;
}

std::optional<LossScalerState> StepDecider::scaler_state() const {
  return scaler_ ? std::optional(scaler_->state()) : std::nullopt;
}

void StepDecider::load_scaler_state(const std::optional<LossScalerState>& state) {
  if (scaler_ && state) scaler_->load_state(*state);
}

}  // namespace zerorun
