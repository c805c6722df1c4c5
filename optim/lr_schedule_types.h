#pragma once

#include <memory>
#include <vector>

#include "zerorun/lr_schedule.h"

namespace zerorun {

// Factories for the kinds of schedules. make_lr_schedule has already checked the configuration.

// WarmupLR, WarmupDecayLR.
std::unique_ptr<LrSchedule> make_warmup_schedule(const SchedulerConfig& config,
                                                 std::vector<double> base_lrs);
std::unique_ptr<LrSchedule> make_warmup_cosine_schedule(const SchedulerConfig& config,
                                                        std::vector<double> base_lrs);
std::unique_ptr<LrSchedule> make_range_test_schedule(const SchedulerConfig& config,
                                                     std::vector<double> base_lrs);
std::unique_ptr<LrSchedule> make_one_cycle_schedule(const SchedulerConfig& config,
                                                    std::vector<double> base_lrs);
// cosine, linear, constant, WSD.
std::unique_ptr<LrSchedule> make_ratio_schedule(const SchedulerConfig& config,
                                                std::vector<double> base_lrs);

// Returns the value of a parameter group from a list with one value for all groups or one per
// group.
inline double value_for(const std::vector<double>& values, int group) {
  return values.size() == 1 ? values.front() : values[static_cast<size_t>(group)];
}

}  // namespace zerorun
