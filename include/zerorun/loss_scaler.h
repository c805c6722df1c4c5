#pragma once

#include <cstdint>
#include <limits>

#include "zerorun/export.h"

namespace zerorun {

struct LossScalerOptions {
  // Static scale when > 0 (fp16.loss_scale); 0 = dynamic.
  double static_scale = 0.0;
  int initial_scale_power = 16;  // dynamic: first scale is 2^power
  int64_t window = 1000;         // fp16.loss_scale_window: clean steps before the scale doubles
  int64_t hysteresis = 2;        // overflows until the scale halves
  bool consecutive_hysteresis = false;  // a clean step refills the hysteresis
  double min_scale = 1.0;               // fp16.min_loss_scale
};

// The state of a LossScaler that a checkpoint keeps; names as in DeepSpeed's scaler.
struct LossScalerState {
  double cur_scale = 1.0;
  int64_t cur_iter = 0;
  int64_t last_overflow_iter = -1;
  int64_t cur_hysteresis = 1;
};

// The loss scale of fp16 training: a state machine without device, engine or collective.
//
//   loss * scaler.scale() -> backward -> unscale by 1 / scaler.scale() -> scaler.update(found_inf)
//
// Gradients are unscaled by the scale they were made with: read scale() before update().
// Transitions are DeepSpeed 0.19's DynamicLossScaler (reference: its runtime/fp16/loss_scaler.py):
// an overflow first uses up the hysteresis, then halves; `window` clean steps after the last
// overflow double.
class ZR_API LossScaler {
 public:
  // Throws ConfigError naming the option that is out of range.
  explicit LossScaler(const LossScalerOptions& options);

  double scale() const { return state_.cur_scale; }
  bool is_dynamic() const { return options_.static_scale == 0.0; }
  // The next overflow exhausts the scaler.
  bool at_minimum() const {
    return is_dynamic() && state_.cur_hysteresis == 1 && state_.cur_scale <= options_.min_scale;
  }

  enum class Outcome : uint8_t {
    kept,       // clean step, same scale
    grown,      // clean step, scale doubled
    skipped,    // overflow: skip the step; the scale stays (hysteresis) or is static
    reduced,    // overflow: skip the step; the scale was halved
    exhausted,  // overflow at the minimum scale: training cannot go on
  };
  // Once per step, with the verdict that all ranks share.
  Outcome update(bool found_inf);

  const LossScalerState& state() const { return state_; }
  // Throws ConfigError when the state could not have come from a scaler.
  void load_state(const LossScalerState& state);

 private:
  LossScalerOptions options_;
  LossScalerState state_;
};

}  // namespace zerorun
