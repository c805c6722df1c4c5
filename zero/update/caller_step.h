#pragma once

#include "zero/groups/engine_context.h"
#include "zero/update/optimizer_states.h"
#include "zerorun/engine.h"

namespace zerorun {

// Lets an optimizer of the caller's update this rank's masters, with gradients that are multiplied
// by `grad_scale`. An error of its on one rank is an error on all, and on that rank its own.
// Collective.
void step_by_caller(const EngineContext& context, Stream& comm_stream, OptimizerStates states,
                    float grad_scale, const Engine::ShardUpdate& update);

}  // namespace zerorun
