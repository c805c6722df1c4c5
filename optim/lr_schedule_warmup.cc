#include <algorithm>
#include <cmath>
#include <numbers>

#include "optim/lr_schedule_types.h"

// DeepSpeed 0.19, runtime/lr_schedules.py: WarmupLR, WarmupDecayLR, WarmupCosineLR, LRRangeTest.

namespace zerorun {

namespace {

// From 0 at iteration 0 to 1 at iteration `steps`.
class Ramp {
 public:
  Ramp(WarmupShape shape, int64_t steps)
      : shape_(shape),
        steps_(std::max<int64_t>(2, steps)),
        inverse_log_(1.0 / std::log(static_cast<double>(steps_))) {}

  int64_t steps() const { return steps_; }
  double at(int64_t iteration) const {
    if (shape_ == WarmupShape::log) {
      return inverse_log_ * std::log(static_cast<double>(iteration + 1));
    }
    return static_cast<double>(iteration) / static_cast<double>(steps_);
  }

 private:
  const WarmupShape shape_;
  const int64_t steps_;
  const double inverse_log_;
};

// WarmupLR, and with a total number of steps WarmupDecayLR.
class Warmup final : public LrSchedule {
 public:
  Warmup(const SchedulerConfig& config, std::vector<double> base_lrs)
      : LrSchedule(std::move(base_lrs), config.last_batch_iteration),
        config_(config),
        ramp_(config.warmup_type, config.warmup_num_steps) {}

 private:
  double gamma(int64_t iteration) const {
    if (iteration < ramp_.steps()) return ramp_.at(iteration);
    if (config_.type == "WarmupLR") return 1.0;
    const auto left = static_cast<double>(config_.total_num_steps - iteration);
    const auto decay = static_cast<double>(config_.total_num_steps - ramp_.steps());
    return std::max(0.0, left / std::max(1.0, decay));
  }

  ScheduledValues at(int64_t iteration, int group) const override {
    const double low = value_for(config_.warmup_min_lr, group);
    if (iteration < 0) return {low};
    const double high =
        config_.warmup_max_lr.empty() ? base_lr(group) : value_for(config_.warmup_max_lr, group);
    return {low + (high - low) * gamma(iteration)};
  }

  const SchedulerConfig config_;
  const Ramp ramp_;
};

class WarmupCosine final : public LrSchedule {
 public:
  WarmupCosine(const SchedulerConfig& config, std::vector<double> base_lrs)
      : LrSchedule(std::move(base_lrs), config.last_batch_iteration),
        config_(config),
        ramp_(config.warmup_type, config.warmup_num_steps) {}

 private:
  double ratio(int64_t iteration) const {
    if (iteration < 0) return 0.0;
    if (iteration < ramp_.steps()) {
      return config_.warmup_min_ratio + ramp_.at(iteration) * (1.0 - config_.warmup_min_ratio);
    }
    const auto step = static_cast<double>(iteration - ramp_.steps() + 1);
    const auto steps =
        static_cast<double>(std::max<int64_t>(1, config_.total_num_steps - ramp_.steps()));
    const double cosine = (1.0 + std::cos(std::numbers::pi * std::min(1.0, step / steps))) / 2.0;
    return std::max(0.0, config_.cos_min_ratio + (1.0 - config_.cos_min_ratio) * cosine);
  }

  ScheduledValues at(int64_t iteration, int group) const override {
    return {base_lr(group) * ratio(iteration)};
  }

  const SchedulerConfig config_;
  const Ramp ramp_;
};

class RangeTest final : public LrSchedule {
 public:
  RangeTest(const SchedulerConfig& config, std::vector<double> base_lrs)
      : LrSchedule(std::move(base_lrs), config.last_batch_iteration), config_(config.range_test) {}

 private:
  ScheduledValues at(int64_t iteration, int group) const override {
    double interval = static_cast<double>(iteration + 1) / static_cast<double>(config_.step_size);
    if (config_.staircase) interval = std::floor(interval);
    return {value_for(config_.min_lr, group) * (1.0 + config_.step_rate * interval)};
  }

  const LrRangeTestConfig config_;
};

}  // namespace

std::unique_ptr<LrSchedule> make_warmup_schedule(const SchedulerConfig& config,
                                                 std::vector<double> base_lrs) {
  return std::make_unique<Warmup>(config, std::move(base_lrs));
}

std::unique_ptr<LrSchedule> make_warmup_cosine_schedule(const SchedulerConfig& config,
                                                        std::vector<double> base_lrs) {
  return std::make_unique<WarmupCosine>(config, std::move(base_lrs));
}

std::unique_ptr<LrSchedule> make_range_test_schedule(const SchedulerConfig& config,
                                                     std::vector<double> base_lrs) {
  return std::make_unique<RangeTest>(config, std::move(base_lrs));
}

}  // namespace zerorun
