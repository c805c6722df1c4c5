#include "zero/gradients/step_control.h"

#include "core/check.h"

namespace zerorun {

namespace {

// The divisor of a sum over ranks, after Precision::pre_scale, for their average.
double divisor_of(const EngineContext& context, const Config& config) {
  const double ranks = config.precision.gradient_reduction == GradientReduction::mean
                           ? context.groups.comm.world_size()
                           : 1;
  return ranks * context.sharding.precision.pre_scale;
}

}  // namespace

StepControl::StepControl(const EngineContext& context, const Config& config)
    : divisor_(divisor_of(context, config)),
      norm_(context),
      inspector_(context),
      decider_(config, 1.0) {
  average_over(context.sharding.accumulation_steps);
  inspector_.watch(decider_.next_overflow_is_fatal());
}

void StepControl::average_over(int64_t micro_steps) {
  decider_.set_average(1.0 / (divisor_ * static_cast<double>(micro_steps)));
}

StepDecision StepControl::decide(const GradientNorm::Result& sum, Stream& stream) {
  if (!sum.any) {
    StepDecision nothing;
    nothing.result.applied = nothing.result.had_gradient = false;
    nothing.result.loss_scale = decider_.loss_scale();
    return nothing;
  }
  const StepDecision decision = decider_.decide(sum.norm, sum.finite);
  if (decision.exhausted) {
    fail<NumericError>(
        "loss scale {:g} is already the minimum and the gradient still overflows: {}. A nan, or an "
        "inf at this scale, comes from the model or its data, not from the scale; lower the "
        "learning rate, look at that parameter, or train in bf16",
        decision.result.loss_scale, inspector_.report(stream));
  }
  inspector_.watch(decider_.next_overflow_is_fatal());
  return decision;
}

void StepControl::load_scaler_state(const std::optional<LossScalerState>& state) {
  decider_.load_scaler_state(state);
  inspector_.watch(decider_.next_overflow_is_fatal());
}

}  // namespace zerorun
