#include <algorithm>
#include <cmath>
#include <numbers>

#include "optim/lr_schedule_types.h"

// Schedules that multiply each group's learning rate with a ratio: transformers 5.23,
// optimization.py, get_{cosine,linear,constant}_schedule_with_warmup and get_wsd_schedule.

namespace zerorun {

namespace {

// From 1 at 0 to 0 at 1.
double decay(DecayShape shape, double progress) {
  switch (shape) {
    case DecayShape::linear:
      return 1.0 - progress;
    case DecayShape::cosine:
      return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
    case DecayShape::one_minus_sqrt:
      return 1.0 - std::sqrt(progress);
  }
  return 0.0;
}

// A linear warm-up, a constant part, a decay, and then the last value: any part may be empty.
class WarmupStableDecay final : public LrSchedule {
 public:
  struct Shape {
    int64_t warmup = 0;
    int64_t decay = 0;
    int64_t total = 0;
    DecayShape decay_shape = DecayShape::linear;
    double warmup_from = 0.0;
    double last = 0.0;
  };

  WarmupStableDecay(const Shape& shape, std::vector<double> base_lrs)
      : LrSchedule(std::move(base_lrs), -1), shape_(shape) {}

 private:
  double ratio(int64_t step) const {
    if (step < shape_.warmup) {
      const double done = static_cast<double>(step) / static_cast<double>(shape_.warmup);
      return done * (1.0 - shape_.warmup_from) + shape_.warmup_from;
    }
    if (step < shape_.total - shape_.decay) return 1.0;
    if (step >= shape_.total) return shape_.last;
    const double progress = static_cast<double>(step - (shape_.total - shape_.decay)) /
                            static_cast<double>(shape_.decay);
    return decay(shape_.decay_shape, progress) * (1.0 - shape_.last) + shape_.last;
  }

  ScheduledValues at(int64_t iteration, int group) const override {
    return {base_lr(group) * ratio(iteration + 1)};
  }

  const Shape shape_;
};

}  // namespace

std::unique_ptr<LrSchedule> make_ratio_schedule(const SchedulerConfig& config,
                                                std::vector<double> base_lrs) {
  WarmupStableDecay::Shape shape{.warmup = config.warmup_num_steps,
                                 .decay = config.total_num_steps - config.warmup_num_steps,
                                 .total = config.total_num_steps,
                                 .last = config.min_lr_ratio};
  if (config.type == "constant") {
    shape.decay = 0;
    shape.total = config.warmup_num_steps;
    shape.last = 1.0;
  } else if (config.type == "cosine") {
    shape.decay_shape = DecayShape::cosine;
  } else if (config.type == "WSD") {
    shape.decay = config.decay_num_steps;
    shape.decay_shape = config.decay_type;
    shape.warmup_from = config.min_lr_ratio;
  }
  return std::make_unique<WarmupStableDecay>(shape, std::move(base_lrs));
}

}  // namespace zerorun
