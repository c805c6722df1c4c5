#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "zerorun/config.h"

namespace zerorun {

// In SchedulerConfig: the file says "auto", and nobody has resolved it.
inline constexpr int64_t kAutoSteps = -1;

// Which lengths a type of schedule has.
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
