#include "zero/timeline/stretches.h"

#include <algorithm>

namespace zerorun {

std::vector<Stretch> joined_stretches(std::vector<Stretch> all) {
  std::ranges::sort(all, {}, &Stretch::begin);
  std::vector<Stretch> joined;
  for (const Stretch& one : all) {
    if (joined.empty() || one.begin > joined.back().end) {
      joined.push_back(one);
    } else {
      joined.back().end = std::max(joined.back().end, one.end);
    }
  }
  return joined;
}

std::vector<Stretch> shared_stretches(const std::vector<Stretch>& a,
                                      const std::vector<Stretch>& b) {
  std::vector<Stretch> both;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Stretch one{std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)};
    if (one.begin < one.end) both.push_back(one);
    ++(a[i].end < b[j].end ? i : j);
  }
  return both;
}

double total_seconds(const std::vector<Stretch>& stretches) {
  double sum = 0;
  for (const Stretch& one : stretches) sum += one.end - one.begin;
  return sum;
}

}  // namespace zerorun
