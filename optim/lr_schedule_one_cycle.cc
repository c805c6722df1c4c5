#include <cmath>

#include "optim/lr_schedule_types.h"

namespace zerorun {

namespace {

// DeepSpeed 0.19.8, runtime/lr_schedules.py, OneCycle: the learning rate rises and falls once while
// beta1 falls and rises, then both may decay.
class OneCycle final : public LrSchedule {
 public:
  OneCycle(const SchedulerConfig& config, std::vector<double> base_lrs)
      : LrSchedule(std::move(base_lrs), config.last_batch_iteration),
        config_(config.one_cycle),
        first_(static_cast<double>(config_.first_step_size)),
        second_(static_cast<double>(config_.second_step_size.value_or(config_.first_step_size))) {}

 private:
  // 0 at the ends of the cycle, 1 at its top.
  double height(int64_t iteration) const {
    const auto step = static_cast<double>(iteration + 1);
    const double total = first_ + second_;
    const double in_cycle = std::fmod(step, total);
    const bool is_rising = position(step) <= first_ / total;
    const auto stairs = static_cast<double>(
        is_rising ? config_.first_stair_count
                  : config_.second_stair_count.value_or(config_.first_stair_count));
    if (stairs > 0.0) {
      // Computed from whole steps: a height that rounding puts just below a stair would become the
      // next lower stair.
      return std::floor(in_cycle <= first_ ? in_cycle * stairs / first_
                                           : (total - in_cycle) * stairs / second_) /
             stairs;
    }
    const double ratio = first_ / total;
    return is_rising ? position(step) / ratio : (position(step) - 1.0) / (ratio - 1.0);
  }

  // Returns the fraction of the cycle that is completed.
  double position(double step) const {
    const double cycles = step / (first_ + second_);
    return 1.0 + cycles - std::floor(1.0 + cycles);
  }

  // Returns the number of decay intervals since the end of the cycle; 0 if there is no decay.
  double intervals(int64_t iteration) const {
    if (config_.decay_step_size == 0) return 0.0;
    return (static_cast<double>(iteration) - (first_ + second_) + 1.0) /
           static_cast<double>(config_.decay_step_size);
  }

  double momentum(int64_t iteration, int group) const {
    const double low = value_for(config_.min_momentum, group);
    const double high = value_for(config_.max_momentum, group);
    if (iteration < 0)
      return low;  // DeepSpeed's constructor sets this, although the cycle starts high
    if (is_in_cycle(iteration)) return high - (high - low) * height(iteration);
    return high * (1.0 + config_.decay_momentum_rate * intervals(iteration));
  }

  bool is_in_cycle(int64_t iteration) const {
    return static_cast<double>(iteration) < first_ + second_;
  }

  ScheduledValues at(int64_t iteration, int group) const override {
    const double low = value_for(config_.min_lr, group);
    const double high = value_for(config_.max_lr, group);
    ScheduledValues values;
    if (is_in_cycle(iteration)) {
      values.lr = low + (high - low) * height(iteration);
    } else {
      values.lr = low / (1.0 + config_.decay_lr_rate * intervals(iteration));
    }
    constexpr double kBeta2 = 0.99;
    if (config_.cycle_momentum) values.betas = {momentum(iteration, group), kBeta2};
    return values;
  }

  const OneCycleConfig config_;
  const double first_;  // number of steps of each half
  const double second_;
};

}  // namespace

std::unique_ptr<LrSchedule> make_one_cycle_schedule(const SchedulerConfig& config,
                                                    std::vector<double> base_lrs) {
  return std::make_unique<OneCycle>(config, std::move(base_lrs));
}

}  // namespace zerorun
