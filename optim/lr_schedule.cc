#include "zerorun/lr_schedule.h"

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

using Rule = LrSchedule::Rule;

Rule fixed(const SchedulerConfig& /*config*/) {
  return
      [](double base_lr, int /*group*/, int64_t /*iteration*/) { return ScheduledValues{base_lr}; };
}

// DeepSpeed 0.19, runtime/lr_schedules.py: WarmupLR, WarmupDecayLR, WarmupCosineLR, LRRangeTest.

// From 0 at iteration 0 to 1 at iteration `steps`.
struct Ramp {
  explicit Ramp(const SchedulerConfig& config)
      : shape(config.warmup_type), steps(std::max<int64_t>(2, config.warmup_num_steps)) {}

  double at(int64_t iteration) const {
    const auto end = static_cast<double>(steps);
    if (shape == WarmupShape::linear) return static_cast<double>(iteration) / end;
    return 1.0 / std::log(end) * std::log(static_cast<double>(iteration + 1));
  }

  WarmupShape shape;
  int64_t steps;
};

// WarmupLR, and with a total number of steps WarmupDecayLR.
Rule warmup(const SchedulerConfig& config) {
  const Ramp ramp(config);
  const auto gamma = [config, ramp](int64_t iteration) {
    if (iteration < ramp.steps) return ramp.at(iteration);
    if (config.type == "WarmupLR") return 1.0;
    const auto left = static_cast<double>(config.total_num_steps - iteration);
    const auto decay = static_cast<double>(config.total_num_steps - ramp.steps);
    return std::max(0.0, left / std::max(1.0, decay));
  };
  return [config, gamma](double base_lr, int group, int64_t iteration) -> ScheduledValues {
    const double low = value_for(config.warmup_min_lr, group);
    if (iteration < 0) return {low};
    const double high =
        config.warmup_max_lr.empty() ? base_lr : value_for(config.warmup_max_lr, group);
    return {low + (high - low) * gamma(iteration)};
  };
}

Rule warmup_cosine(const SchedulerConfig& config) {
  const Ramp ramp(config);
  const auto ratio = [config, ramp](int64_t iteration) {
    if (iteration < 0) return 0.0;
    if (iteration < ramp.steps) {
      return config.warmup_min_ratio + ramp.at(iteration) * (1.0 - config.warmup_min_ratio);
    }
    const auto step = static_cast<double>(iteration - ramp.steps + 1);
    const auto steps =
        static_cast<double>(std::max<int64_t>(1, config.total_num_steps - ramp.steps));
    const double cosine = (1.0 + std::cos(std::numbers::pi * std::min(1.0, step / steps))) / 2.0;
    return std::max(0.0, config.cos_min_ratio + (1.0 - config.cos_min_ratio) * cosine);
  };
  return [ratio](double base_lr, int /*group*/, int64_t iteration) {
    return ScheduledValues{base_lr * ratio(iteration)};
  };
}

Rule range_test(const SchedulerConfig& config) {
  return [test = config.range_test](double /*base_lr*/, int group, int64_t iteration) {
    double interval = static_cast<double>(iteration + 1) / static_cast<double>(test.step_size);
    if (test.staircase) interval = std::floor(interval);
    return ScheduledValues{value_for(test.min_lr, group) * (1.0 + test.step_rate * interval)};
  };
}

// DeepSpeed 0.19.8, runtime/lr_schedules.py, OneCycle: the learning rate rises and falls once while
// beta1 falls and rises, then both may decay.
class OneCycle {
 public:
  explicit OneCycle(const OneCycleConfig& config)
      : config_(config),
        first_(static_cast<double>(config_.first_step_size)),
        second_(static_cast<double>(config_.second_step_size.value_or(config_.first_step_size))) {}

  ScheduledValues operator()(double /*base_lr*/, int group, int64_t iteration) const {
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

  const OneCycleConfig config_;
  const double first_;  // number of steps of each half
  const double second_;
};

Rule one_cycle(const SchedulerConfig& config) { return OneCycle(config.one_cycle); }

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
Rule warmup_stable_decay(const SchedulerConfig& config) {
  const int64_t warmup = config.warmup_num_steps;
  int64_t total = config.total_num_steps;
  int64_t decaying = total - warmup;
  DecayShape shape = DecayShape::linear;
  double warmup_from = 0.0;
  double last = config.min_lr_ratio;
  if (config.type == "constant") {
    decaying = 0;
    total = warmup;
    last = 1.0;
  } else if (config.type == "cosine") {
    shape = DecayShape::cosine;
  } else if (config.type == "WSD") {
    decaying = config.decay_num_steps;
    shape = config.decay_type;
    warmup_from = config.min_lr_ratio;
  }
  const auto ratio = [=](int64_t step) {
    if (step < warmup) {
      const double done = static_cast<double>(step) / static_cast<double>(warmup);
      return done * (1.0 - warmup_from) + warmup_from;
    }
    if (step < total - decaying) return 1.0;
    if (step >= total) return last;
    const double progress =
        static_cast<double>(step - (total - decaying)) / static_cast<double>(decaying);
    return decay(shape, progress) * (1.0 - last) + last;
  };
  return [ratio](double base_lr, int /*group*/, int64_t iteration) {
    return ScheduledValues{base_lr * ratio(iteration + 1)};
  };
}

struct ScheduleType {
  std::string_view name;
  Rule (*rule)(const SchedulerConfig&);
  bool is_deepspeeds = false;  // and so begins after last_batch_iteration
};

constexpr ScheduleType kScheduleTypes[] = {
    {"", &fixed},
    {"WarmupLR", &warmup, true},
    {"WarmupDecayLR", &warmup, true},
    {"WarmupCosineLR", &warmup_cosine, true},
    {"OneCycle", &one_cycle, true},
    {"LRRangeTest", &range_test, true},
    {"cosine", &warmup_stable_decay},
    {"linear", &warmup_stable_decay},
    {"constant", &warmup_stable_decay},
    {"WSD", &warmup_stable_decay},
};

const ScheduleType& find_type(std::string_view type) {
  std::vector<std::string_view> names;
  for (const ScheduleType& one : kScheduleTypes) {
    if (one.name == type) return one;
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
  const double base_lr = base_lrs_[static_cast<size_t>(group)];
  if (applied_steps == 0 && first_ != -1) return {base_lr};
  return rule_(base_lr, group, first_ + applied_steps);
}

std::unique_ptr<LrSchedule> make_lr_schedule(const SchedulerConfig& config,
                                             std::vector<double> base_lrs) {
  const ScheduleType& type = find_type(config.type);
  if (!config.type.empty()) check(config, base_lrs.size());
  return std::make_unique<LrSchedule>(std::move(base_lrs),
                                      type.is_deepspeeds ? config.last_batch_iteration : -1,
                                      type.rule(config));
}

}  // namespace zerorun
