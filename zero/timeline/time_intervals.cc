#include "zero/timeline/time_intervals.h"

#include <algorithm>

namespace zerorun {

std::vector<TimeInterval> joined_intervals(std::vector<TimeInterval> all) {
  std::ranges::sort(all, {}, &TimeInterval::begin);
  std::vector<TimeInterval> joined;
  for (const TimeInterval& one : all) {
    if (joined.empty() || one.begin > joined.back().end) {
      joined.push_back(one);
    } else {
      joined.back().end = std::max(joined.back().end, one.end);
    }
  }
  return joined;
}

std::vector<TimeInterval> shared_intervals(const std::vector<TimeInterval>& a,
                                           const std::vector<TimeInterval>& b) {
  std::vector<TimeInterval> both;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const TimeInterval one{std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)};
    if (one.begin < one.end) both.push_back(one);
    ++(a[i].end < b[j].end ? i : j);
  }
  return both;
}

double total_seconds(const std::vector<TimeInterval>& intervals) {
  double sum = 0;
  for (const TimeInterval& one : intervals) sum += one.end - one.begin;
  return sum;
}

}  // namespace zerorun
