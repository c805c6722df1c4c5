#pragma once

#include <optional>

#include "zero/bucket.h"
#include "zero/gradient_inspector.h"
#include "zero/gradient_norm.h"
#include "zerorun/engine.h"

namespace zerorun {

// Decides, once per step and with one collective that every rank takes, whether the reduced
// gradient is applied, and what it is multiplied with: average, loss scale and clipping in one
// factor.
class StepControl {
 public:
  StepControl(const EngineContext& context, const Config& config);

  GradientNorm& norm() { return norm_; }
  GradientInspector& inspector() { return inspector_; }
  double loss_scale() const { return scaler_ ? scaler_->scale() : 1.0; }
  // What a reduced gradient is multiplied with to be the average of unscaled gradients.
  double average() const { return average_ / loss_scale(); }

  struct Decision {
    StepResult result;
    float grad_scale = 1.0F;
  };
  // Collective. Throws NumericError, on every rank, when the loss scale cannot become smaller.
  Decision decide(Stream& stream);

  // `state` as EngineProgress::loss_scaler; nullopt leaves the scaler as it is.
  std::optional<LossScalerState> scaler_state() const;
  void load_scaler_state(const std::optional<LossScalerState>& state);

 private:
  // The verdict of the scaler when there is one, before it moves to its next scale.
  void update_scaler(bool overflow, double scale, Stream& stream);

  const double max_norm_;
  const double average_;
  const bool check_overflow_;
  GradientNorm norm_;
  GradientInspector inspector_;
  std::optional<LossScaler> scaler_;
};

}  // namespace zerorun
