#include "zero/groups/lanes.h"

namespace zerorun {

Lanes::Lanes(const EngineContext& context) : inline_(context.device.inline_stream()) {
  if (!*context.zero.overlap_comm) return;
  reductions_ = context.device.make_stream("zerorun-comm");
  if (&context.gathers() != &context.shards()) {
    gathers_ = context.device.make_stream("zerorun-gather");
  }
}

void Lanes::end() {
  gathers_.reset();
  reductions_.reset();
}

}  // namespace zerorun
