#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/checks/check.h"
#include "zerorun/config.h"

namespace zerorun {

// Makes problems of values that are right by themselves and contradict each other.
void check_conflicts(const GivenKeys& keys, const Config& config, ConfigProblems& problems);

// Stands in SchedulerConfig where the file says "auto" and nobody has resolved it.
inline constexpr int64_t kAutoSteps = -1;

// The lengths that a type of schedule has.
struct ScheduleLengths {
  bool warmup = false;
  bool total = false;
};
ScheduleLengths lengths_of(std::string_view type);

struct KeyProblem {
  std::string_view pointer;
  std::string text;
};

// Lengths that contradict each other; those not known yet are left out.
std::vector<KeyProblem> schedule_problems(const SchedulerConfig& config);

}  // namespace zerorun
