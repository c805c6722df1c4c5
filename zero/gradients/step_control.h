#pragma once

#include <optional>

#include "amp/step_decision.h"
#include "zero/gradients/gradient_inspector.h"
#include "zero/gradients/gradient_norm.h"
#include "zero/groups/engine_context.h"

namespace zerorun {

// Decides about a step: whether it is applied, and with which gradient scale. StepDecider makes the
// decision from the gradient norm; it is the same on every rank.
class StepControl {
 public:
  StepControl(const EngineContext& context, const Config& config);

  GradientNorm& norm() { return norm_; }
  GradientInspector& inspector() { return inspector_; }
  const StepDecider& decider() const { return decider_; }

  // The part of the decision that the device can make before the host knows the norm.
  StepRule rule() const { return decider_.rule(); }
  // Decides about the step whose norm is `sum`. If no rank had a gradient, nothing is applied.
  // Throws NumericError on every rank if the loss scale cannot become smaller; that case is
  // collective.
  StepDecision decide(const GradientNorm::Result& sum, Stream& stream);

  // Sets the number of micro-steps per batch from now on.
  void average_over(int64_t micro_steps);

  void load_scaler_state(const std::optional<LossScalerState>& state);

 private:
  const double divisor_;  // of a sum over the ranks
  GradientNorm norm_;
  GradientInspector inspector_;
  StepDecider decider_;
};

}  // namespace zerorun
