#pragma once

#include <optional>

#include "amp/step_rule.h"
#include "zerorun/config.h"
#include "zerorun/loss_scaler.h"

namespace zerorun {

// Has the rule by which steps are decided, and the loss scale, which follows from the decisions. It
// is independent of devices and collectives: ranks that have the same gradient norm make the same
// decision.
class StepDecider {
 public:
  // `divisor`: that of a sum over the ranks, for their average.
  StepDecider(const Config& config, double divisor)
      : max_norm_(config.gradient_clipping),
        divisor_(divisor),
        average_(1.0 / divisor),
        check_overflow_(config.precision.check_grad_overflow ||
                        config.precision.param_dtype != DType::bf16) {
    const bool scales = config.precision.param_dtype == DType::fp16 || config.precision.scales_loss;
    if (scales) scaler_.emplace(config.precision.loss_scaler);
  }

  // Sets the number of micro-steps per batch from now on; 1 before.
  void average_over(int64_t micro_steps) {
    average_ = 1.0 / (divisor_ * static_cast<double>(micro_steps));
  }
  double loss_scale() const { return scaler_ ? scaler_->scale() : 1.0; }
  // Returns the factor that turns a reduced gradient into the average of unscaled gradients.
  double average() const { return average_ / loss_scale(); }
  StepRule rule() const { return {average(), max_norm_, check_overflow_}; }
  // Decides by the current rule, and sets the loss scale of the next step. `norm` and `finite`
  // describe the sum over ranks and micro-steps, which is still multiplied by the loss scale.
  StepDecision decide(double norm, bool finite) {
    const StepDecision decision(rule(), norm, finite);
    if (scaler_) scaler_->update(!finite);
    return decision;
  }
  // True if the next overflow leaves no smaller loss scale.
  bool next_overflow_is_fatal() const { return scaler_ && scaler_->at_minimum(); }

  // The state is that of EngineProgress::loss_scaler. Loading nullopt does not change the scaler.
  std::optional<LossScalerState> scaler_state() const {
    return scaler_ ? std::optional(scaler_->state()) : std::nullopt;
  }
  void load_scaler_state(const std::optional<LossScalerState>& state) {
    if (scaler_ && state) scaler_->load_state(*state);
  }

 private:
  const double max_norm_;
  const double divisor_;
  double average_;
  const bool check_overflow_;
  std::optional<LossScaler> scaler_;  // where the loss is scaled
};

}  // namespace zerorun
