#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "zerorun/engine.h"

namespace zerorun {

// Learns the order in which modules are used and predicts the next ones, for prefetching.
//
// For each pair (previous module, current module) it remembers the module that followed. Forward,
// backward, evaluation and generation pass through different pairs, so they do not disturb each
// other's predictions. A wrong prediction costs time, never correctness.
class GatherOrder {
 public:
  // `numels`: the number of elements of each module.
  explicit GatherOrder(std::vector<int64_t> numels)
      : end_(static_cast<ModuleId>(numels.size())), numels_(std::move(numels)) {
    numels_.push_back(0);
    uses_.resize(numels_.size());
  }

  void record(ModuleId module);
  void end_micro_step() { record(end_); }
  // Predicts up to `count` modules that follow the last recorded one, as far as they are known.
  // Modules beyond the end of the micro-step are included only with `beyond_end`.
  std::vector<ModuleId> predict(int count, bool beyond_end = true) const;
  // The elements of other modules that are used before `module` is used again; nullopt if no reuse
  // is known.
  std::optional<int64_t> reuse_distance(ModuleId module) const;

 private:
  using Pair = std::pair<ModuleId, ModuleId>;
  // The last use of a module, and the elements of all uses up to its end.
  struct Use {
    Pair pair{-1, -1};
    int64_t end = 0;
  };

  const ModuleId end_;  // marks the end of a micro-step, as a module without elements
  std::vector<int64_t> numels_;
  std::vector<Use> uses_;  // by module
  std::map<Pair, ModuleId> successor_;
  std::map<Pair, int64_t> distance_;  // from the use at that pair to the module's next one
  Pair last_{-1, -1};
  int64_t used_ = 0;  // elements of all uses so far
};

}  // namespace zerorun
