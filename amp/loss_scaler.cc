#include "zerorun/loss_scaler.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace zerorun {

namespace {

void check(const LossScalerOptions& options) {
  if (!std::isfinite(options.static_scale) || options.static_scale < 0) {
    fail<ConfigError>("/fp16/loss_scale: got {}, expected 0 (dynamic) or a positive finite number",
                      options.static_scale);
  }
  if (options.static_scale > 0) return;
  if (options.initial_scale_power < 0 || options.initial_scale_power > 1000) {
    fail<ConfigError>("/fp16/initial_scale_power: got {}, expected 0 to 1000",
                      options.initial_scale_power);
  }
  if (options.window < 1) {
    fail<ConfigError>("/fp16/loss_scale_window: got {}, expected at least 1", options.window);
  }
  if (options.hysteresis < 1) {
    fail<ConfigError>("/fp16/hysteresis: got {}, expected at least 1", options.hysteresis);
  }
  if (!std::isfinite(options.min_scale) || options.min_scale <= 0) {
    fail<ConfigError>("/fp16/min_loss_scale: got {}, expected a positive number",
                      options.min_scale);
  }
}

}  // namespace

LossScaler::LossScaler(const LossScalerOptions& options) : options_(options) {
  check(options);
  state_.cur_scale =
      is_dynamic() ? std::ldexp(1.0, options.initial_scale_power) : options.static_scale;
  state_.cur_hysteresis = options.hysteresis;
}

LossScaler::Outcome LossScaler::update(bool found_inf) {
  if (!is_dynamic()) return found_inf ? Outcome::skipped : Outcome::kept;
  const int64_t iteration = state_.cur_iter;
  if (found_inf) {
    if (state_.cur_hysteresis > 1) {
      --state_.cur_hysteresis;
      state_.last_overflow_iter = iteration;
      ++state_.cur_iter;
      return Outcome::skipped;
    }
    if (state_.cur_scale <= options_.min_scale) return Outcome::exhausted;
    // The hysteresis stays used up, so that the next overflow halves the scale immediately.
    state_.cur_scale = std::max(state_.cur_scale / 2, options_.min_scale);
    state_.last_overflow_iter = iteration;
    ++state_.cur_iter;
    return Outcome::reduced;
  }
  if (options_.consecutive_hysteresis) state_.cur_hysteresis = options_.hysteresis;
  const int64_t clean = iteration - state_.last_overflow_iter - 1;
  ++state_.cur_iter;
  if (clean <= 0 || clean % options_.window != 0) return Outcome::kept;
  state_.cur_hysteresis = options_.hysteresis;
  state_.cur_scale *= 2;
  return Outcome::grown;
}

void LossScaler::load_state(const LossScalerState& state) {
  if (!std::isfinite(state.cur_scale) || state.cur_scale <= 0 || state.cur_iter < 0 ||
      state.last_overflow_iter < -1 || state.last_overflow_iter >= state.cur_iter + 1 ||
      state.cur_hysteresis < 1) {
    fail<ConfigError>("loss scaler state: scale {}, iteration {}, last overflow {}, hysteresis {}",
                      state.cur_scale, state.cur_iter, state.last_overflow_iter,
                      state.cur_hysteresis);
  }
  state_ = state;
}

}  // namespace zerorun
