#pragma once

#include <vector>

namespace zerorun {

// An interval of time, in seconds.
struct TimeInterval {
  double begin = 0;
  double end = 0;
};

// Merges intervals that may overlap into disjoint ones, in ascending order.
std::vector<TimeInterval> joined_intervals(std::vector<TimeInterval> all);
// The intersection of two lists of intervals, each of which is disjoint and ascending.
std::vector<TimeInterval> shared_intervals(const std::vector<TimeInterval>& a,
                                           const std::vector<TimeInterval>& b);
double total_seconds(const std::vector<TimeInterval>& intervals);

}  // namespace zerorun
