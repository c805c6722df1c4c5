#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "zerorun/engine.h"

namespace zerorun {

// Learns in which order modules are used and predicts what comes next.
//
// Remembers the successor of each pair (previous, current): forward, backward, evaluation and
// generation pass through different pairs, so they do not disturb each other's predictions. A wrong
// guess costs time, never correctness.
class GatherOrder {
 public:
  void record(ModuleId module);
  // The next `count` modules after the last recorded one, as far as they are known.
  std::vector<ModuleId> predict(int count) const;
  // Elements of other modules used before `module` is used again; nothing when no reuse is known.
  // `numels` is indexed by module.
  std::optional<int64_t> reuse_distance(ModuleId module, const std::vector<int64_t>& numels) const;

 private:
  using Pair = std::pair<ModuleId, ModuleId>;
  std::map<Pair, ModuleId> successor_;
  Pair last_{-1, -1};
};

}  // namespace zerorun
