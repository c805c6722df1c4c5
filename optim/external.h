#pragma once

#include "core/check.h"
#include "optim/optimizer.h"

namespace zerorun {

// Stands for an optimizer of the caller's: the engine shards masters and gradients for it, and the
// caller updates them (Engine::step with an update).
class ExternalOptimizer final : public Optimizer {
 public:
  std::span<const std::string> state_names() const override { return {}; }
  void step(Device&, Stream&, int64_t, float, const ParameterGroup&,
            const OptimizerSegment&) const override {
    fail<InternalError>("Engine::step() without an update, but the optimizer is the caller's");
  }
};

}  // namespace zerorun
