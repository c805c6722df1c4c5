#include "config/nearest.h"

#include <algorithm>

#include "config/suggest.h"

namespace zerorun {

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  std::string best;
  size_t limit = std::clamp<size_t>(name.size() / 3, 2, 4);
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(name, candidate, limit);
    // A name of which every letter would change is not near.
    if (distance > limit || distance >= candidate.size()) continue;
    if (best.empty() || distance < limit) best = candidate;
    limit = distance;
  }
  return best;
}

}  // namespace zerorun
