#pragma once

#include <optional>

#include "amp/step_rule.h"
#include "zerorun/config.h"
#include "zerorun/engine.h"
#include "zerorun/loss_scaler.h"

namespace zerorun {

struct StepDecision {
  StepResult result;
  float grad_scale = 1.0F;  // factor of the reduced gradient: average, loss scale and clipping
  bool exhausted = false;   // the gradient overflowed at the minimum loss scale
};

// Decides in each step whether to apply the reduced gradient, by which factor to multiply it, and
// what the next loss scale is. It is independent of devices and collectives: ranks that have the
// same gradient norm make the same decision.
class StepDecider {
 public:
  // `average` is the factor that turns the sum over ranks and micro-steps into the average.
  StepDecider(const Config& config, double average);

  double loss_scale() const { return scaler_ ? scaler_->scale() : 1.0; }
  // Returns the factor that turns a reduced gradient into the average of unscaled gradients.
  double average() const { return average_ / loss_scale(); }
  void set_average(double average) { average_ = average; }
  // Returns the part of the decision that a device can compute.
  StepRule rule() const { return {average(), max_norm_, check_overflow_}; }
  // `norm` and `finite` describe the sum over ranks and micro-steps, which is still multiplied by
  // the loss scale.
  StepDecision decide(double norm, bool finite);
  // True if the next overflow leaves no smaller loss scale.
  bool next_overflow_is_fatal() const { return scaler_ && scaler_->at_minimum(); }

  // The state is that of EngineProgress::loss_scaler. Loading nullopt does not change the scaler.
  std::optional<LossScalerState> scaler_state() const;
  void load_scaler_state(const std::optional<LossScalerState>& state);

 private:
  const double max_norm_;
  double average_;
  const bool check_overflow_;
  std::optional<LossScaler> scaler_;  // where the loss is scaled
};

}  // namespace zerorun
