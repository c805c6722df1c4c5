#pragma once

#include <vector>

namespace zerorun {

// An interval of time, in seconds.
struct Stretch {
  double begin = 0;
  double end = 0;
};

// Merges stretches that may overlap into disjoint ones, in ascending order.
std::vector<Stretch> joined_stretches(std::vector<Stretch> all);
// The intersection of two lists of stretches, each of which is disjoint and ascending.
std::vector<Stretch> shared_stretches(const std::vector<Stretch>& a, const std::vector<Stretch>& b);
double total_seconds(const std::vector<Stretch>& stretches);

}  // namespace zerorun
