#include "zerorun/lr_schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>

#include "config/conflicts.h"
#include "core/check.h"
#include "optim/lr_schedule_types.h"

namespace zerorun {

namespace {

using Factory = std::unique_ptr<LrSchedule> (*)(const SchedulerConfig&, std::vector<double>);

struct ScheduleType {
  std::string_view name;
  Factory make;
};

constexpr ScheduleType kScheduleTypes[] = {
    {"WarmupLR", &make_warmup_schedule},
    {"WarmupDecayLR", &make_warmup_schedule},
    {"WarmupCosineLR", &make_warmup_cosine_schedule},
    {"OneCycle", &make_one_cycle_schedule},
    {"LRRangeTest", &make_range_test_schedule},
    {"cosine", &make_ratio_schedule},
    {"linear", &make_ratio_schedule},
    {"constant", &make_ratio_schedule},
    {"WSD", &make_ratio_schedule},
};

class Fixed final : public LrSchedule {
 public:
  explicit Fixed(std::vector<double> base_lrs) : LrSchedule(std::move(base_lrs), -1) {}

 private:
  ScheduledValues at(int64_t /*iteration*/, int group) const override { return {base_lr(group)}; }
};

Factory find_factory(std::string_view type) {
  std::vector<std::string_view> names;
  for (const ScheduleType& one : kScheduleTypes) {
    if (one.name == type) return one.make;
    names.push_back(one.name);
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
  if (config.type.empty()) return std::make_unique<Fixed>(std::move(base_lrs));
  const Factory make = find_factory(config.type);
  check(config, base_lrs.size());
  return make(config, std::move(base_lrs));
}

}  // namespace zerorun
