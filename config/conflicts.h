#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/checks/check.h"
#include "zerorun/config.h"

namespace zerorun {

// Reports values that are valid by themselves but contradict each other.
void check_conflicts(const GivenKeys& keys, const Config& config, ConfigProblems& problems);

// Value in SchedulerConfig for a number of steps that is "auto" and not resolved yet.
inline constexpr int64_t kAutoSteps = -1;

// Which numbers of steps a type of schedule uses.
struct ScheduleLengths {
  bool warmup = false;
  bool total = false;
};
ScheduleLengths lengths_of(std::string_view type);

struct KeyProblem {
  std::string_view pointer;
  std::string text;
};

// Returns what is asked for, and the stage of ZeRO or another key does not support.
std::vector<KeyProblem> stage_problems(const Config& config);
// Returns contradictions between numbers of steps, ignoring those that are not known yet.
std::vector<KeyProblem> schedule_problems(const SchedulerConfig& config);

}  // namespace zerorun
