#pragma once

#include <cstdint>

#include "zerorun/export.h"

namespace zerorun {

struct LossScalerOptions {
  // Static scale if > 0 (fp16.loss_scale); 0: dynamic.
  double static_scale = 0.0;
  int initial_scale_power = 16;  // the initial dynamic scale is 2^power
  int64_t window = 1000;   // fp16.loss_scale_window: steps without overflow until the scale doubles
  int64_t hysteresis = 2;  // number of overflows until the scale is halved
  // restart counting overflows after each step without overflow
  bool consecutive_hysteresis = false;
  double min_scale = 1.0;  // fp16.min_loss_scale
};

// The state of a LossScaler that a checkpoint saves. The names are those of DeepSpeed's scaler.
struct LossScalerState {
  double cur_scale = 1.0;
  int64_t cur_iter = 0;
  int64_t last_overflow_iter = -1;
  int64_t cur_hysteresis = 1;
};

// Computes the loss scale of fp16 training. It is a pure state machine, independent of device,
// engine and collectives.
//
//   loss * scaler.scale() -> backward -> unscale by 1 / scaler.scale() -> scaler.update(found_inf)
//
// Gradients must be unscaled by the scale with which they were computed: read scale() before
// update(). Transitions are those of DeepSpeed 0.19's DynamicLossScaler
// (runtime/fp16/loss_scaler.py): the `hysteresis`-th overflow halves the scale, and `window` steps
// without overflow double it.
class ZR_API LossScaler {
 public:
  // Throws ConfigError that names an option which is out of range.
  explicit LossScaler(const LossScalerOptions& options);

  double scale() const { return state_.cur_scale; }
  bool is_dynamic() const { return options_.static_scale == 0.0; }
  // True if the next overflow makes update return Outcome::exhausted.
  bool at_minimum() const {
    return is_dynamic() && state_.cur_hysteresis == 1 && state_.cur_scale <= options_.min_scale;
  }

  enum class Outcome : uint8_t {
    kept,   // no overflow: the scale stays
    grown,  // no overflow: the scale was doubled
    // overflow: skip the step; the scale stays, because of hysteresis or because it is static
    skipped,
    reduced,    // overflow: skip the step; the scale was halved
    exhausted,  // overflow at the minimum scale: training cannot continue
  };
  // Must be called once per step. `found_inf` must be the same on all ranks.
  Outcome update(bool found_inf);

  const LossScalerState& state() const { return state_; }
  // Throws ConfigError if `state` cannot be the state of a scaler.
  void load_state(const LossScalerState& state);

 private:
  LossScalerOptions options_;
  LossScalerState state_;
};

}  // namespace zerorun
