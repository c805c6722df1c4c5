#pragma once

#include "zero/groups/engine_context.h"
#include "zero/update/optimizer_states.h"
#include "zerorun/engine.h"

namespace zerorun {

// Lets an optimizer of the caller (a torch optimizer) update this rank's masters, with gradients
// multiplied by `grad_scale`, in the order of the inline stream. If it throws on one rank, that
// rank rethrows the error and all others throw one, too. Collective.
void step_by_caller(const EngineContext& context, Stream& comm_stream, OptimizerStates states,
                    float grad_scale, const Engine::ShardUpdate& update);

}  // namespace zerorun
