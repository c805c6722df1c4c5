#pragma once

#include <vector>

namespace zerorun {

// From one moment to another, in seconds.
struct Stretch {
  double begin = 0;
  double end = 0;
};

// Stretches that may overlap as disjoint ones, ascending.
std::vector<Stretch> joined_stretches(std::vector<Stretch> all);
// The time that is in both; each is disjoint and ascending.
std::vector<Stretch> shared_stretches(const std::vector<Stretch>& a, const std::vector<Stretch>& b);
double total_seconds(const std::vector<Stretch>& stretches);

}  // namespace zerorun
