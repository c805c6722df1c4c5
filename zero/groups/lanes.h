#pragma once

#include <memory>

#include "zero/groups/engine_context.h"

namespace zerorun {

// The streams of an engine's collectives.
class Lanes {
 public:
  // Without overlap_comm there is none, and collectives run on the inline stream.
  explicit Lanes(const EngineContext& context);

  // Reductions of gradients, and all that follows them in a step.
  Stream& reductions() { return reductions_ ? *reductions_ : inline_; }
  // Gathers of sharded parameters, with EngineContext::gathers.
  Stream& gathers() { return gathers_ ? *gathers_ : reductions(); }

  // Ends both when their work is done.
  void end();

 private:
  Stream& inline_;
  std::unique_ptr<Stream> reductions_;
  std::unique_ptr<Stream> gathers_;  // null: the same as reductions_
};

}  // namespace zerorun
