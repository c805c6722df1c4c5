#include "zero/groups/lanes.h"

namespace zerorun {

Lanes::Lanes(const EngineContext& context) : inline_(context.device.inline_stream()) {
  if (!*context.sharding.zero.overlap_comm) return;
  reductions_ = context.device.make_stream("zerorun-comm");
  if (&context.groups.gathers() != &context.groups.shards()) {
    gathers_ = context.device.make_stream("zerorun-gather");
  }
}

void Lanes::end() {
  gathers_.reset();
  reductions_.reset();
}

}  // namespace zerorun
