#pragma once

#include <optional>

#include "amp/step_rule.h"
#include "zerorun/config.h"
#include "zerorun/engine.h"
#include "zerorun/loss_scaler.h"

namespace zerorun {

struct StepDecision {
  StepResult result;
  float grad_scale = 1.0F;  // multiplies the reduced gradient: average, loss scale and clipping
  bool exhausted = false;   // the gradient overflowed, and the loss scale cannot become smaller
};

// Decides once per step whether the reduced gradient is applied, what it is multiplied with, and
// which loss scale comes next. Without device or collective: ranks that agree on the gradient's
// norm decide alike.
class StepDecider {
 public:
  // `average` turns a sum over ranks and micro-steps into their average.
  StepDecider(const Config& config, double average);

  double loss_scale() const { return scaler_ ? scaler_->scale() : 1.0; }
  // The factor that turns a reduced gradient into the average of unscaled gradients.
  double average() const { return average_ / loss_scale(); }
  void set_average(double average) { average_ = average; }
  // The part of the decision that a device can take.
  StepRule rule() const { return {average(), max_norm_, check_overflow_}; }
  // `norm` and `finite`: of the sum over ranks and micro-steps, which is still scaled.
  StepDecision decide(double norm, bool finite);
  // The next overflow exhausts the loss scale.
  bool next_overflow_is_fatal() const { return scaler_ && scaler_->at_minimum(); }

  // `state` as EngineProgress::loss_scaler; nullopt leaves the scaler as it is.
  std::optional<LossScalerState> scaler_state() const;
  void load_scaler_state(const std::optional<LossScalerState>& state);

 private:
  const double max_norm_;
  double average_;
  const bool check_overflow_;
  std::optional<LossScaler> scaler_;  // where the loss is scaled
};

}  // namespace zerorun
