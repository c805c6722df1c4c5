#include "zero/update/caller_step.h"

#include <exception>
#include <vector>

#include "comm/agreement.h"

namespace zerorun {

void step_by_caller(const EngineContext& context, Stream& comm_stream, OptimizerStates states,
                    float grad_scale, const Engine::ShardUpdate& update) {
  // Parameters are cast from masters afterwards; they may be in a file.
  std::vector<StateInterval> intervals = states.intervals(OptimizerStates::Parts::states);
  std::erase_if(intervals, [](const StateInterval& part) { return part.grad.data == nullptr; });
  for (const StateInterval& part : intervals) {
    Device& home = part.on_host ? context.device.host() : context.device;
    home.scale(home.inline_stream(), part.grad, grad_scale);
  }
  std::exception_ptr own;
  const auto note_error = [&] {
    try {
      update(intervals);
    } catch (...) {
      own = std::current_exception();
      throw;
    }
  };
  try {
    Agreement(context.groups.job(), comm_stream).run("the caller's optimizer", note_error);
  } catch (...) {
    if (own) std::rethrow_exception(own);
    throw;
  }
}

}  // namespace zerorun
