#include "zero/parameters/gather_order.h"

namespace zerorun {

void GatherOrder::record(ModuleId module) {
  if (last_.second >= 0) successor_[last_] = module;
  last_ = {last_.second, module};
  Use& use = uses_.at(static_cast<size_t>(module));
  if (use.pair.second >= 0) distance_[use.pair] = used_ - use.end;
  used_ += numels_[static_cast<size_t>(module)];
  use = {last_, used_};
}

std::vector<ModuleId> GatherOrder::predict(int count, bool beyond_end) const {
  std::vector<ModuleId> modules;
  Pair at = last_;
  for (int i = 0; i < count; ++i) {
    const auto found = successor_.find(at);
    if (found == successor_.end()) break;
    const ModuleId next = found->second;
    if (next == end_ && !beyond_end) break;
    if (next != end_) modules.push_back(next);
    at = {at.second, next};
  }
  return modules;
}

std::optional<int64_t> GatherOrder::reuse_distance(ModuleId module) const {
  const Use& use = uses_.at(static_cast<size_t>(module));
  const auto found = distance_.find(use.pair);
  if (found == distance_.end()) return std::nullopt;
  const int64_t left = found->second - (used_ - use.end);
  return left < 0 ? std::nullopt : std::optional(left);  // another order than the last time
}

}  // namespace zerorun
