#include "zerorun/lr_schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

#include "config/conflicts.h"
#include "core/check.h"

namespace zerorun {

namespace {

// Returns the value of a parameter group from a list with one value for all groups or one per
// group.
double value_for(const std::vector<double>& values, int group) {
  return values.size() == 1 ? values.front() : values[static_cast<size_t>(group)];
}

class Fixed final : public LrSchedule {
 public:
  Fixed(const SchedulerConfig& /*config*/, std::vector<double> base_lrs)
      : LrSchedule(std::move(base_lrs), -1) {}

 private:
  ScheduledValues at(int64_t /*iteration*/, int group) const override { return {base_lr(group)}; }
};

// DeepSpeed 0.19, runtime/lr_schedules.py: WarmupLR, WarmupDecayLR, WarmupCosineLR, LRRangeTest.

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

// Schedules that multiply each group's learning rate with a ratio: transformers 5.23,
// optimization.py, get_{cosine,linear,constant}_schedule_with_warmup and get_wsd_schedule.

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
  WarmupStableDecay(const SchedulerConfig& config, std::vector<double> base_lrs)
      : LrSchedule(std::move(base_lrs), -1), shape_(shape_of(config)) {}

 private:
  struct Shape {
    int64_t warmup = 0;
    int64_t decay = 0;
    int64_t total = 0;
    DecayShape decay_shape = DecayShape::linear;
    double warmup_from = 0.0;
    double last = 0.0;
  };

  static Shape shape_of(const SchedulerConfig& config) {
    Shape shape{.warmup = config.warmup_num_steps,
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
    return shape;
  }

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

using Factory = std::unique_ptr<LrSchedule> (*)(const SchedulerConfig&, std::vector<double>);

template <typename Schedule>
std::unique_ptr<LrSchedule> make(const SchedulerConfig& config, std::vector<double> base_lrs) {
  return std::make_unique<Schedule>(config, std::move(base_lrs));
}

struct ScheduleType {
  std::string_view name;
  Factory make;
};

constexpr ScheduleType kScheduleTypes[] = {
    {"", &make<Fixed>},
    {"WarmupLR", &make<Warmup>},
    {"WarmupDecayLR", &make<Warmup>},
    {"WarmupCosineLR", &make<WarmupCosine>},
    {"OneCycle", &make<OneCycle>},
    {"LRRangeTest", &make<RangeTest>},
    {"cosine", &make<WarmupStableDecay>},
    {"linear", &make<WarmupStableDecay>},
    {"constant", &make<WarmupStableDecay>},
    {"WSD", &make<WarmupStableDecay>},
};

Factory find_factory(std::string_view type) {
  std::vector<std::string_view> names;
  for (const ScheduleType& one : kScheduleTypes) {
    if (one.name == type) return one.make;
    if (!one.name.empty()) names.push_back(one.name);
  }
  fail<ConfigError>("/scheduler/type: got '{}', expected one of {}", type, fmt::join(names, ", "));
}

// Checks a list that must have one value for all groups or one per group; optional lists may be
// empty.
void check_list(std::string_view name, const std::vector<double>& values, size_t groups,
                std::vector<std::string>& problems) {
  if (values.size() <= 1 || values.size() == groups) return;
  problems.push_back(
      fmt::format("/scheduler/params/{}: got {} values, expected 1, or {}, one per parameter group",
                  name, values.size(), groups));
}

void check_given(std::string_view type, std::string_view name, bool is_given,
                 std::vector<std::string>& problems) {
  if (is_given) return;
  problems.push_back(fmt::format(
      "/scheduler/params/{}: missing, or \"auto\" and not resolved; {} needs it", name, type));
}

void check(const SchedulerConfig& config, size_t groups) {
  std::vector<std::string> problems;
  const std::string_view type = config.type;
  check_list("warmup_min_lr", config.warmup_min_lr, groups, problems);
  check_list("warmup_max_lr", config.warmup_max_lr, groups, problems);
  check_list("lr_range_test_min_lr", config.range_test.min_lr, groups, problems);
  check_list("cycle_min_lr", config.one_cycle.min_lr, groups, problems);
  check_list("cycle_max_lr", config.one_cycle.max_lr, groups, problems);
  check_list("cycle_min_mom", config.one_cycle.min_momentum, groups, problems);
  check_list("cycle_max_mom", config.one_cycle.max_momentum, groups, problems);
  if (type == "OneCycle") {
    check_given(type, "cycle_min_lr", !config.one_cycle.min_lr.empty(), problems);
    check_given(type, "cycle_max_lr", !config.one_cycle.max_lr.empty(), problems);
  }
  const ScheduleLengths lengths = lengths_of(type);
  if (lengths.warmup) {
    check_given(type, "warmup_num_steps", config.warmup_num_steps != kAutoSteps, problems);
  }
  if (lengths.total) {
    check_given(type, "total_num_steps", config.total_num_steps > 0, problems);
  }
  if (type == "WSD") check_given(type, "decay_num_steps", config.decay_num_steps > 0, problems);
  for (const KeyProblem& problem : schedule_problems(config)) {
    problems.push_back(fmt::format("{}: {}", problem.pointer, problem.text));
  }
  if (!problems.empty()) fail<ConfigError>("{}", fmt::join(problems, "\n"));
}

}  // namespace

ScheduledValues LrSchedule::values(int64_t applied_steps, int group) const {
  ZR_CHECK(group >= 0 && group < groups(), "parameter group {} of {}", group, groups());
  ZR_CHECK(applied_steps >= 0, "{} applied steps", applied_steps);
  // DeepSpeed's constructors do not change the groups if last_batch_iteration is given.
  if (applied_steps == 0 && first_ != -1) return {base_lr(group)};
  return at(first_ + applied_steps, group);
}

std::unique_ptr<LrSchedule> make_lr_schedule(const SchedulerConfig& config,
                                             std::vector<double> base_lrs) {
  const Factory create = find_factory(config.type);
  if (!config.type.empty()) check(config, base_lrs.size());
  return create(config, std::move(base_lrs));
}

}  // namespace zerorun
