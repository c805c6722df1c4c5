#pragma once

#include <optional>

#include "amp/step_decision.h"
#include "zero/gradients/gradient_inspector.h"
#include "zero/gradients/gradient_norm.h"
#include "zero/groups/engine_context.h"

namespace zerorun {

// The engine's decision about a step: StepDecider's verdict on the gradient's norm, the same on
// every rank.
class StepControl {
 public:
  StepControl(const EngineContext& context, const Config& config);

  GradientNorm& norm() { return norm_; }
  GradientInspector& inspector() { return inspector_; }
  const StepDecider& decider() const { return decider_; }

  // The part of the decision that the device can take before the host knows the norm.
  StepRule rule() const { return decider_.rule(); }
  // Without a gradient on any rank there is nothing to apply. Throws NumericError, on every rank,
  // when the loss scale cannot become smaller; that is collective.
  StepDecision decide(const GradientNorm::Result& sum, Stream& stream);

  // Micro-steps that a batch has from now on.
  void average_over(int64_t micro_steps);

  void load_scaler_state(const std::optional<LossScalerState>& state);

 private:
  const double divisor_;  // of a sum over the ranks
  GradientNorm norm_;
  GradientInspector inspector_;
  StepDecider decider_;
};

}  // namespace zerorun
