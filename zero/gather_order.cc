#include "zero/gather_order.h"

namespace zerorun {

void GatherOrder::record(ModuleId module) {
  if (last_.second >= 0) successor_[last_] = module;
  last_ = {last_.second, module};
}

std::vector<ModuleId> GatherOrder::predict(int count) const {
  std::vector<ModuleId> modules;
  Pair at = last_;
  for (int i = 0; i < count; ++i) {
    const auto found = successor_.find(at);
    if (found == successor_.end()) break;
    modules.push_back(found->second);
    at = {at.second, found->second};
  }
  return modules;
}

std::optional<int64_t> GatherOrder::reuse_distance(ModuleId module,
                                                   const std::vector<int64_t>& numels) const {
  int64_t distance = 0;
  // A cycle visits each module at most a few times; longer walks have left what was learned.
  for (ModuleId next : predict(4 * static_cast<int>(numels.size()))) {
    if (next == module) return distance;
    distance += numels[static_cast<size_t>(next)];
  }
  return std::nullopt;
}

}  // namespace zerorun
